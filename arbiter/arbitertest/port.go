package arbitertest

import (
	"fmt"

	"twok/internal/freeport"
)

// FreePort returns a free address host:port on loopback, which is this process's until it ends (freeport).
func FreePort() string {
	ports, err := freeport.Ports(1)
	if err != nil {
		panic(fmt.Sprintf("arbitertest: %v", err))
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}
