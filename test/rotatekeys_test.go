// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// rotation is the replacement of the keys of two servers on one etcd.
type rotation struct {
	*failover
	// admin is a copy of the first kubeconfig, token one of a service account of then.
	admin, token string
}

// rotate does a step for both keys on a server, which is killed after each.
func (r *rotation) rotate(t *testing.T, server, step string, flags ...string) {
	t.Helper()
	for _, key := range []string{"ca", "sa"} {
		args := append([]string{"certs", "rotate", key, step, "--data-dir", r.data(server)}, flags...)
		if out, err := exec.Command(r.bin, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s on %s: %v\n%s", key, step, server, err, out)
		}
	}
	r.stops[server]()
	r.server(t, server)
}

// refused says that finish is refused on a server, and why.
func (r *rotation) refused(t *testing.T, key, want string) {
	t.Helper()
	var out []byte
	r.until(t, "finish is refused: "+want, func() bool {
		var err error
		out, err = exec.Command(r.bin, "certs", "rotate", key, "finish", "--data-dir", r.data("s1")).CombinedOutput()
		if err == nil {
			t.Fatalf("finish of %s is done, want %q", key, want)
		}
		return strings.Contains(string(out), want)
	})
}

// as calls a server by a kubeconfig, or by a token.
func (r *rotation) as(server, kubeconfig, token string) string {
	args := []string{
		"kubectl", "--kubeconfig", kubeconfig, "--server", "https://" + address(server) + ":6443", "--request-timeout=5s",
		"--certificate-authority", r.data(server) + "/pki/ca.crt",
	}
	if token != "" {
		args = append(args, "--token", token)
	}
	out, _ := exec.Command(r.bin, append(args, "auth", "whoami")...).CombinedOutput() // a refusal is an answer
	return string(out)
}

// work checks that both servers know the previous and the current certificates and tokens, and reach the node.
func (r *rotation) work(t *testing.T, when string) {
	t.Helper()
	for _, by := range []string{"s1", "s2"} {
		made := r.kubectl(by, "create", "token", "default")
		for _, at := range []string{"s1", "s2"} {
			r.until(t, at+" knows certificates and tokens, "+when, func() bool {
				return strings.Contains(r.as(at, r.admin, ""), "admin") &&
					strings.Contains(r.as(at, r.data(by)+"/kubeconfig", ""), "admin") &&
					strings.Contains(r.as(at, os.DevNull, r.token), "default:default") &&
					strings.Contains(r.as(at, os.DevNull, made), "default:default")
			})
		}
	}
	r.reaches(t, "s1", "s2")
}

// TestKeysOfTwoServers: the keys of the CA and of tokens are replaced on two servers with one store, each killed after
// each of its steps. Until the end both know what both have issued, and no node is lost.
func TestKeysOfTwoServers(t *testing.T) {
	r := &rotation{failover: newFailover(t)}
	r.server(t, "s1")
	r.server(t, "s2")
	r.agents(t)
	out, err := exec.Command(r.bin, "token", "create", "--print-join-command", "--data-dir", r.data("s1")).Output()
	if err != nil {
		t.Fatal(err)
	}
	r.join(t, "n1", string(out))
	r.works(t, "s1", "first")
	r.admin = filepath.Join(r.dir, "admin")
	if out, err := exec.Command("cp", r.data("s1")+"/kubeconfig", r.admin).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	r.token = r.kubectl("s1", "create", "token", "default")

	r.rotate(t, "s1", "trust")
	if out, err := exec.Command(r.bin, "certs", "rotate", "ca", "use", "--data-dir",
		r.data("s1")).CombinedOutput(); err == nil || !strings.Contains(string(out), "does not trust the new key") {
		t.Errorf("use before the other server trusts the key: %v, %s", err, out)
	}
	copied := "cp -p " + r.data("s1") + "/pki/ca[.-]* " + r.data("s1") + "/pki/sa[.-]* " + r.data("s2") + "/pki/"
	if out, err := exec.Command("sh", "-c", copied).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", copied, err, out)
	}
	r.work(t, "both are trusted")

	r.rotate(t, "s1", "use")
	r.work(t, "one server signs with the new key")
	r.refused(t, "ca", "the old key signs there")
	r.rotate(t, "s2", "use")
	r.until(t, "the node has certificates of the new key", func() bool {
		out, _ := exec.Command(r.bin, "certs", "-o", "json", "--data-dir", r.data("n1")).Output()
		return strings.Count(string(out), `"issuer": "keelson-ca-2`) == 2
	})
	r.work(t, "the new key signs")
	r.refused(t, "ca", "in use by admin")
	r.refused(t, "sa", "in use by system:serviceaccount:default:default")
	r.stops["s1"]() // which forgets who used what
	r.server(t, "s1")
	r.stops["s2"]()
	r.server(t, "s2")
	r.refused(t, "ca", "in which time clients of the old key are noticed")

	r.rotate(t, "s1", "finish", "--force")
	for _, at := range []string{"s1", "s2"} {
		made := r.kubectl("s1", "create", "token", "default")
		r.until(t, at+" knows what the new key has issued", func() bool {
			return strings.Contains(r.as(at, os.DevNull, made), "default:default") &&
				strings.Contains(r.as(at, r.data("s2")+"/kubeconfig", ""), "admin")
		})
	}
	r.reaches(t, "s1", "s2")
	r.rotate(t, "s2", "finish", "--force")
	for _, at := range []string{"s1", "s2"} {
		r.until(t, at+" refuses what the old key has issued", func() bool {
			return !strings.Contains(r.as(at, r.admin, ""), "admin") &&
				!strings.Contains(r.as(at, os.DevNull, r.token), "default:default")
		})
	}
	r.reaches(t, "s1", "s2")
	r.works(t, "s2", "last")
	r.undisturbed(t, "s1")
}
