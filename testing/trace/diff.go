package trace

import (
	"fmt"
	"reflect"
	"strings"
)

// diff names what differs between the trace's and the model's value.
func diff(real, model any) string {
	var out []string
	differ(reflect.ValueOf(real), reflect.ValueOf(model), "", &out)
	return strings.Join(out, ", ")
}

func differ(a, b reflect.Value, path string, out *[]string) {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			differ(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name, out)
		}
	case reflect.Array:
		for i := range a.Len() {
			differ(a.Index(i), b.Index(i), fmt.Sprintf("%s[%d]", path, i), out)
		}
	default:
		if !a.Equal(b) {
			*out = append(*out, fmt.Sprintf("%s is %v, in the model %v", strings.TrimPrefix(path, "."), a, b))
		}
	}
}
