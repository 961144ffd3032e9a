// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// nominator holds the nominated pods: those for which preemption is making room, each with its node (status.nominatedNodeName).
type nominator struct {
	mu   sync.Mutex
	at   map[types.UID]string
	pods map[string][]*state.PodInfo
}

func newNominator() *nominator {
	return &nominator{at: map[types.UID]string{}, pods: map[string][]*state.PodInfo{}}
}

func (n *nominator) add(p *state.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removeLocked(p.Pod.UID)
	n.at[p.Pod.UID] = node
	n.pods[node] = append(n.pods[node], p)
}

func (n *nominator) remove(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removeLocked(uid)
}

func (n *nominator) removeLocked(uid types.UID) {
	node, ok := n.at[uid]
	if !ok {
		return
	}
	delete(n.at, uid)
	rest := slices.DeleteFunc(slices.Clone(n.pods[node]), func(p *state.PodInfo) bool { return p.Pod.UID == uid })
	if n.pods[node] = rest; len(rest) == 0 {
		delete(n.pods, node)
	}
}

func (n *nominator) node(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.at[uid]
}

// each calls f for every pod for which room is being made.
func (n *nominator) each(f func(p *state.PodInfo, node string)) {
	n.mu.Lock()
	all := maps.Clone(n.pods)
	n.mu.Unlock()
	for node, pods := range all {
		for _, p := range pods {
			f(p, node)
		}
	}
}

// view returns the function by which the engine asks for a node's nominated pods; nil: there are none, which is nearly always so.
func (n *nominator) view() framework.Nominations {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.at) == 0 {
		return nil
	}
	return func(node string) []*state.PodInfo {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.pods[node]
	}
}
