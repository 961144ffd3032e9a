// SPDX-License-Identifier: Apache-2.0

package network

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// missingFeature tries the features of the nftables table one by one, in a table for that purpose, and returns the
// first one that this kernel refuses; empty when there is none.
func missingFeature(conn *nftables.Conn) string {
	nat := func(hook *nftables.ChainHook, exprs ...expr.Any) func(*nftables.Table) {
		return func(t *nftables.Table) {
			ch := conn.AddChain(&nftables.Chain{
				Name:     "probe",
				Table:    t,
				Type:     nftables.ChainTypeNAT,
				Hooknum:  hook,
				Priority: nftables.ChainPriorityNATDest,
			})
			if len(exprs) > 0 {
				conn.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: exprs})
			}
		}
	}
	pre := nftables.ChainHookPrerouting
	post := nftables.ChainHookPostrouting
	for _, f := range []struct {
		name string
		add  func(*nftables.Table)
	}{
		{"nftables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4)", func(*nftables.Table) {}},
		{"address translation in nftables (CONFIG_NFT_NAT)", nat(pre)},
		{"fib lookups in nftables (CONFIG_NFT_FIB_IPV4)", nat(pre, toLocal()...)},
		{"masquerading in nftables (CONFIG_NFT_MASQ)", nat(post, &expr.Masq{})},
		{"maps in nftables (CONFIG_NF_TABLES, Linux 5.6)", func(t *nftables.Table) {
			_ = conn.AddSet(&nftables.Set{
				Table:         t,
				Name:          "m",
				ID:            1,
				IsMap:         true,
				Concatenation: true,
				KeyType:       anyKey,
				DataType:      anyKey,
			}, nil)
		}},
	} {
		t := conn.AddTable(&nftables.Table{Name: "keelson-probe", Family: nftables.TableFamilyIPv4})
		f.add(t)
		conn.DelTable(t)
		if conn.Flush() != nil {
			return f.name
		}
	}
	return ""
}
