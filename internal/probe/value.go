package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// value is what a probe writes: text of a record's size that tells who wrote it, and whether it is whole.
type value struct {
	Format string `json:"format"`
	Run    string `json:"run"` // of the probe
	Writer int    `json:"writer"`
	Turn   int    `json:"turn"` // counts this probe's values
	Pad    string `json:"pad"`
	Sum    string `json:"sum"`
}

const format = "twok-probe"

// encode makes a value. Its length varies, so that a torn read of one over another shows.
func (v value) encode() []byte {
	v.Format = format
	v.Pad = strings.Repeat("0123456789abcdef", 8+(v.Turn*7+v.Writer*3)%41)
	v.Sum = v.sum()
	b, err := json.Marshal(v)
	if err != nil {
		panic("probe: " + err.Error()) // a struct of strings and ints
	}
	return b
}

func (v value) sum() string {
	v.Sum = ""
	b, err := json.Marshal(v)
	if err != nil {
		panic("probe: " + err.Error())
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// decode reads a value; false if it is not one, or not a whole one.
func decode(b []byte) (value, bool) {
	var v value
	if json.Unmarshal(b, &v) != nil || v.Format != format || v.Sum != v.sum() {
		return value{}, false
	}
	return v, true
}
