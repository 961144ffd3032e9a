// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/node"
)

// TestNodeHolder: a node name is refused to a start whose machine or directory is new to the node, while the lease is
// renewed.
func TestNodeHolder(t *testing.T) {
	const interval = 10 * time.Second
	here := node.Machine{MachineID: "m1", SystemID: "s1"}
	for what, c := range map[string]struct {
		machine, system string // of the Node; neither: there is no Node
		had, renewed    bool
		refused         bool
		waits           bool
	}{
		"no such node":                       {renewed: true},
		"this one, restarted":                {machine: "m1", system: "s1", had: true, renewed: true},
		"this one, no system ID":             {machine: "m1", had: true, renewed: true},
		"another machine":                    {machine: "m2", system: "s2", renewed: true, refused: true},
		"another machine, the name was mine": {machine: "m1", system: "s2", had: true, renewed: true, refused: true},
		"another directory of this machine":  {machine: "m1", system: "s1", renewed: true, refused: true},
		"another machine that has stopped":   {machine: "m2", system: "s2", had: true, waits: true},
		"a lost directory":                   {machine: "m1", system: "s1", waits: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			look := func(context.Context) (NodeHolder, error) {
				renewed := metav1.NewMicroTime(begin)
				if c.renewed {
					renewed = metav1.NewMicroTime(time.Now().Truncate(interval))
				}
				out := NodeHolder{Lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}}
				if c.machine != "" {
					out.Node = &corev1.Node{}
					out.Node.Status.NodeInfo.MachineID = c.machine
					out.Node.Status.NodeInfo.SystemUUID = c.system
				}
				return out, nil
			}
			err := NodeClaim{
				Name:    "n1",
				Machine: here,
				Had:     c.had,
				Look:    look,
				Log:     slog.New(slog.DiscardHandler),
			}.Free(t.Context())
			if c.refused {
				if err == nil || !strings.Contains(err.Error(), "the node n1 runs elsewhere") ||
					!strings.Contains(err.Error(), "choose another --node-name") {
					t.Errorf("%s: %v, want it refused, with what to do", what, err)
				}
			} else if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(begin); !c.refused && (took == renewalWait) != c.waits {
				t.Errorf("%s: it took %s", what, took)
			}
		})
	}
}
