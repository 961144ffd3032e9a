// SPDX-License-Identifier: Apache-2.0

package test

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// killRounds N: N times a rollout of deployment/web is begun, the instance killed at a random moment of it, and started
// again; what was running must still run, and the rollout must come to its end. The moments are printed, so that one
// can be repeated.
func killRounds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: killrounds N")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i := range n {
		round := "round-" + strconv.Itoa(i+1)
		ts.Check(ts.Exec("keelson", "kubectl", "set", "env", "deployment/web", "GREETING="+round))
		// A rollout of three takes a second or so: each round falls into the next fifth of it.
		after := time.Duration(i*250+rand.IntN(250)) * time.Millisecond // no secret
		ts.Logf("%s: killed %s after the change", round, after)
		time.Sleep(after)
		killCluster(ts, false, nil)
		ts.Check(ts.Exec("keelson", "up", "--detach", "--port", "0"))
		ts.Check(ts.Exec("keelson", "kubectl", "rollout", "status", "deployment/web", "--timeout=120s"))
		ts.Check(ts.Exec("keelson", "kubectl", "wait", "--for=jsonpath={.status.replicas}=3", "deployment/web",
			"--timeout=60s"))
		ts.Check(ts.Exec("sh", "-c",
			`for i in $(seq 600); do [ $(keelson kubectl get pods -l app=web -o name | wc -l) = 3 ] && exit 0; sleep 0.1; done; exit 1`))
	}
}
