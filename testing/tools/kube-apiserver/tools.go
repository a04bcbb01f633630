//go:build tools

// Package tools pins the Kubernetes API server that the tests run.
package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
