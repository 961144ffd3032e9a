// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with the few plugins that TestCoreDNS needs: it is asked the same questions as the
// built-in server. `make tools` builds it; nothing else of Keelson knows it.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	dnsserver.Directives = []string{"errors", "kubernetes", "forward"}
	coremain.Run()
}
