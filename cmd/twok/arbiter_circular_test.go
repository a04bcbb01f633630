package main

import "testing"

// Rules: none (command line).
func TestStoreHost(t *testing.T) {
	for raw, want := range map[string]string{
		"http://h:7379/pair": "h", "https://[fd00::1]:7379/pair": "fd00::1", "https://h/pair": "h",
		"etcd://h:2379/pair": "h", "etcd://h:2379,i:2379/pair": "",
		"s3://bucket/pair": "", "s3://bucket/pair?endpoint=http%3A%2F%2Fh%3A9000&path-style=true": "h",
		"configmap://twok/pair": "", "::": "",
	} {
		if got := storeHost(raw); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}
