package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// S3rver returns the script (for node) of the S3 server pinned in
// testing/tools/s3rver, which ignores If-Match and If-None-Match. It is installed by npm into
// the cache, without running anything of it, as Etcd is built.
func S3rver(ctx context.Context, log io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", fmt.Errorf("install s3rver: %w", err)
	}
	src := filepath.Join(root, "testing", "tools", "s3rver")
	files := map[string][]byte{}
	h := sha256.New()
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", fmt.Errorf("install s3rver: %w", err)
		}
		files[name] = data
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
	}
	var pins struct{ Dependencies map[string]string }
	if err := json.Unmarshal(files["package.json"], &pins); err != nil {
		return "", fmt.Errorf("install s3rver from %s: package.json: %w", src, err)
	}
	version := pins.Dependencies["s3rver"]
	cache, err := cacheDir("s3rver")
	if err != nil {
		return "", fmt.Errorf("install s3rver: %w", err)
	}
	dir := filepath.Join(cache, version+"-"+hex.EncodeToString(h.Sum(nil))[:12])
	script := filepath.Join(dir, "node_modules", "s3rver", "bin", "s3rver.js")
	complete := func() bool {
		fi, err := os.Stat(script)
		return err == nil && fi.Mode().IsRegular() && fi.Size() > 0
	}
	if complete() {
		return script, nil
	}
	err = install(ctx, dir, "s3rver "+version, log, complete, func(tmp string) error {
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(tmp, name), data, 0o644); err != nil {
				return err
			}
		}
		fmt.Fprintf(log, "installing s3rver %s (once; kept in %s)\n", version, dir)
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = tmp
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s (is Node on the PATH?): %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("install s3rver %s: %w", version, err)
	}
	return script, nil
}
