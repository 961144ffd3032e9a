// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"

	"keelson/network/nft"
)

// affinityClients is the maximum number of clients with affinity to one endpoint; further ones are served without.
const affinityClients = 65536

// affinityTimeout returns the timeout of session affinity; 0: none.
func affinityTimeout(svc *corev1.Service) time.Duration {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	}
	return time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
}

// addAffinity adds the chains and sets of session affinity for a list of endpoints, and returns the chain that serves
// them. All frontends of a port share it.
func (p *Part) addAffinity(f ipFamily, id string, eps []Endpoint, timeout time.Duration) string {
	if len(eps) == 0 {
		return ""
	}
	name := f.name("sticky") + "-" + id
	if _, ok := p.Chains[name]; ok {
		return name
	}
	var rules []nft.Rule
	p.Sets[name] = nft.Set{Name: name, Key: []nft.Type{nft.Num}, Verdicts: true}
	for i, e := range eps {
		one := name + "-" + digest(e.Addr.String())
		p.Sets[one] = nft.Set{
			Name:    one,
			Key:     []nft.Type{f.addr},
			Timeout: timeout,
			Size:    affinityClients,
		}
		p.Chains[one] = nft.Chain{
			Name:  one,
			Rules: []nft.Rule{{nft.Update(one, timeout, f.saddr)}, {nft.DNATTo(e.Addr)}},
		}
		rules = append(rules, nft.Rule{nft.In(one, f.saddr), nft.Goto(one)})
		p.put(name, nft.Number(uint32(i)), nft.ToChain(one))
	}
	rules = append(rules, nft.Rule{nft.OfFamily(f.n), nft.Vmap(name, nft.Random(len(eps)))})
	p.Chains[name] = nft.Chain{Name: name, Rules: rules}
	return name
}

// own adds a chain for this port only.
func (p *Part) own(what string, f ipFamily, id string, rules []nft.Rule) string {
	name := fmt.Sprintf("%s-%s", f.name(what), id)
	p.Chains[name] = nft.Chain{Name: name, Rules: rules}
	return name
}

func digest(s string) string { return strconv.FormatUint(xxhash.Sum64String(s), 36) }
