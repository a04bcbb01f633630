package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"twok/internal/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// one are the tools of one path and one release.
var one = map[string]func(context.Context, io.Writer) (string, error){
	"staticcheck": lab.Staticcheck, "versitygw": lab.Versitygw, "s3rver": lab.S3rver,
	"kube-apiserver": lab.KubeAPIServer, "lighttpd": lab.Lighttpd, "nginx": lab.Nginx,
}

func run(ctx context.Context, args []string) int {
	switch {
	case len(args) >= 1 && args[0] == "etcd":
		minors := args[1:]
		if len(minors) == 0 {
			minors = lab.Minors
		}
		for _, minor := range minors {
			b, err := lab.Etcd(ctx, minor, os.Stderr)
			if err != nil {
				fmt.Fprintln(os.Stderr, "error:", err)
				return 1
			}
			fmt.Printf("%s\n%s\n%s\n", b.Etcd, b.Etcdctl, b.Etcdutl)
		}
	case len(args) == 1 && one[args[0]] != nil:
		path, err := one[args[0]](ctx, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			return 1
		}
		fmt.Println(path)
	default:
		fmt.Fprintln(os.Stderr, "usage: build etcd [3.5 3.6 3.7] | build staticcheck | build versitygw | build s3rver | build kube-apiserver | build lighttpd | build nginx")
		return 2
	}
	return 0
}
