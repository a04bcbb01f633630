package arbitertest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePort returns a free address host:port on loopback, below the kernel's own range, whose ports
// go to whoever connects.
func FreePort() string {
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
}
