// SPDX-License-Identifier: Apache-2.0

package userns

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"
)

// dir is a kubelet's directory of pods.
type dir string

func (d dir) pod(uid string) string { return filepath.Join(string(d), uid) }

func (d dir) make(t interface{ Fatal(args ...any) }, uid string) {
	if err := os.MkdirAll(d.pod(uid), 0o700); err != nil {
		t.Fatal(err)
	}
}

// pods are those with a directory.
func (d dir) pods(t interface{ Fatal(args ...any) }) []string {
	ents, err := os.ReadDir(string(d))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range ents {
		out = append(out, e.Name())
	}
	return out
}

func (d dir) open(t *testing.T, maxPods int) (*Manager, []string) {
	t.Helper()
	m := New(d.pod, slog.New(slog.DiscardHandler))
	damaged, err := m.Load(DefaultRange(maxPods), maxPods, d.pods(t))
	if err != nil {
		t.Fatal(err)
	}
	return m, damaged
}

func TestAcquire(t *testing.T) {
	d := dir(t.TempDir())
	manager, _ := d.open(t, 2)
	d.make(t, "a")
	got, err := manager.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, ContainerId: 0, Length: 65536}}
	want := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("the first pod's user namespace (-want +got):\n%s", diff)
	}
	raw, err := os.ReadFile(filepath.Join(d.pod("a"), "userns"))
	// As Kubernetes writes it.
	file := `{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`
	if err != nil || string(raw) != file {
		t.Errorf("record: got %s, %v, want %s", raw, err, file)
	}
	again, err := manager.Acquire("a")
	if err != nil || !cmp.Equal(again, got, protocmp.Transform()) {
		t.Errorf("again: got %v, %v, want the same", again, err)
	}
	if _, err := manager.Acquire("none"); err == nil {
		t.Error("a pod without a directory got a range")
	}
	d.make(t, "b")
	d.make(t, "c")
	if _, err := manager.Acquire("b"); err != nil {
		t.Error(err)
	}
	if _, err := manager.Acquire("c"); err == nil {
		t.Error("three pods have two ranges")
	}
	if err := manager.Release("a"); err != nil {
		t.Error(err)
	}
	if _, err := manager.Acquire("c"); err != nil {
		t.Errorf("after a release: %v", err)
	}
}

func TestLoad(t *testing.T) {
	d := dir(t.TempDir())
	manager, _ := d.open(t, 4)
	for _, uid := range []string{"a", "b"} {
		d.make(t, uid)
		if _, err := manager.Acquire(uid); err != nil {
			t.Fatal(err)
		}
	}
	userNamespace := manager.Of("a")
	b := manager.Of("b")
	d.make(t, "plain") // a pod of the host's user namespace
	// A node that may have fewer pods now keeps those that it has.
	manager, damaged := d.open(t, 1)
	if len(damaged) > 0 || !cmp.Equal(manager.Of("a"), userNamespace, protocmp.Transform()) ||
		!cmp.Equal(manager.Of("b"), b, protocmp.Transform()) || manager.Of("plain") != nil {
		t.Errorf("after a restart: got %v, %v, %v, damaged %v", manager.Of("a"), manager.Of("b"), manager.Of("plain"),
			damaged)
	}
	// Damaged records: cut short, empty, of the host's root, of ids that another has, a directory.
	same, err := os.ReadFile(filepath.Join(d.pod("a"), "userns"))
	if err != nil {
		t.Fatal(err)
	}
	for uid, content := range map[string]string{
		"z-short": `{"uidMappings":`,
		"z-empty": "",
		"z-clash": string(same),
		"z-root":  `{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}`,
	} {
		d.make(t, uid)
		if err := os.WriteFile(filepath.Join(d.pod(uid), "userns"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.make(t, "z-dir/userns")
	manager, damaged = d.open(t, 4)
	if want := []string{"z-clash", "z-dir", "z-empty", "z-root", "z-short"}; !slices.Equal(damaged, want) {
		t.Errorf("damaged: got %v, want %v", damaged, want)
	}
	ids := []*runtimeapi.IDMapping{{HostId: 3 * 65536, Length: 65536}}
	if err := manager.Adopt("z-short", &runtimeapi.UserNamespace{Uids: ids, Gids: ids}); err != nil {
		t.Error(err)
	}
	if err := manager.Adopt("z-empty", userNamespace); err == nil {
		t.Error("two pods have one range")
	}
	manager, _ = d.open(t, 4)
	if got := manager.Of("z-short"); got.GetUids()[0].GetHostId() != 3*65536 {
		t.Errorf("the repaired record: got %v", got)
	}
}

func TestLoadRefuses(t *testing.T) {
	manager := New(dir(t.TempDir()).pod, slog.New(slog.DiscardHandler))
	for name, r := range map[string]Range{
		"the host's ids":    {0, 110 * Length},
		"no multiple":       {Length + 1, 110 * Length},
		"a part of a range": {Length, 110*Length + 1},
		"too few":           {Length, 109 * Length},
		"too many":          {1<<32 - Length, 110 * Length},
		"none":              {Length, 0},
	} {
		if _, err := manager.Load(r, 110, nil); err == nil {
			t.Errorf("%s: %v was accepted", name, r)
		}
	}
	for _, n := range []int{0, 1, 110, 65533, 65534, 1 << 20} {
		if _, err := manager.Load(DefaultRange(n), n, nil); err != nil {
			t.Errorf("the default for %d pods: %v", n, err)
		}
	}
}

// TestRanges: whatever pods come, go and restart, no two have an id in common, none has one of the host's, what is
// given back can be had again, and the disk knows all of it.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tmp, err := os.MkdirTemp("", "userns") //nolint:usetesting // rapid's T has no TempDir
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		d := dir(tmp)
		maxPods := rapid.IntRange(1, 6).Draw(t, "maxPods")
		all := DefaultRange(maxPods)
		open := func() *Manager {
			m := New(d.pod, slog.New(slog.DiscardHandler))
			if damaged, err := m.Load(all, maxPods, d.pods(t)); err != nil || len(damaged) > 0 {
				t.Fatalf("load: %v, damaged %v", err, damaged)
			}
			return m
		}
		manager := open()
		model := map[string]uint32{}
		uid := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("pod-%d", rapid.IntRange(0, 9).Draw(t, "pod"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				u := uid.Draw(t, "uid")
				d.make(t, u)
				ns, err := manager.Acquire(u)
				_, had := model[u]
				if (err == nil) != (had || len(model) < maxPods) {
					t.Fatalf("acquire with %d of %d taken: %v", len(model), maxPods, err)
				}
				if err != nil {
					return
				}
				first := ns.GetUids()[0].GetHostId()
				if had && model[u] != first {
					t.Fatalf("pod %s had %d, now %d", u, model[u], first)
				}
				model[u] = first
			},
			"release": func(t *rapid.T) {
				u := uid.Draw(t, "uid")
				if err := manager.Release(u); err != nil {
					t.Fatal(err)
				}
				delete(model, u)
			},
			"forget": func(t *rapid.T) { // the directory first, as the kubelet does
				u := uid.Draw(t, "uid")
				if err := os.RemoveAll(d.pod(u)); err != nil {
					t.Fatal(err)
				}
				if err := manager.Release(u); err != nil {
					t.Fatal(err)
				}
				delete(model, u)
			},
			"restart": func(*rapid.T) { manager = open() },
			"": func(t *rapid.T) {
				seen := map[uint32]string{}
				for u, first := range model {
					ns := manager.Of(u)
					if ns == nil || ns.GetUids()[0].GetHostId() != first || ns.GetGids()[0].GetHostId() != first {
						t.Fatalf("pod %s: got %v, want %d", u, ns, first)
					}
					if first%Length != 0 || first < all.First || first+Length > all.First+all.Count {
						t.Fatalf("pod %s has ids from %d on", u, first)
					}
					if other, ok := seen[first]; ok {
						t.Fatalf("pods %s and %s share ids", u, other)
					}
					seen[first] = u
				}
			},
		})
	})
}

func TestParseSubIDs(t *testing.T) {
	got, err := parseSubIDs("0: kubelet 65536 7208960\n")
	if want := (Range{65536, 7208960}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, s := range []string{
		"", "0: kubelet 65536", "0: kubelet a b", "0: kubelet 65536 -1", "0: kubelet 65536 1\n1: kubelet 5 5",
		"0: kubelet 99999999999 1",
	} {
		if got, err := parseSubIDs(s); err == nil {
			t.Errorf("%q: got %v", s, got)
		}
	}
}

func FuzzParseSubIDs(f *testing.F) {
	f.Add("0: kubelet 65536 7208960\n")
	f.Add("")
	f.Add("0: kubelet 4294967295 4294967295")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseSubIDs(s)
		if err == nil && r.check(110) == nil && (r.First < Length || uint64(r.First)+uint64(r.Count) > 1<<32) {
			t.Errorf("%q: %v was accepted", s, r)
		}
	})
}

// FuzzRecord: what is read from a pod's directory is a range that this package gives, or an error.
func FuzzRecord(f *testing.F) {
	f.Add(
		[]byte(
			`{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(
		`{"uidMappings":[{"hostId":4294901760,"length":65536}],"gidMappings":[{"hostId":4294901760,"length":65536}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if first, err := parse(raw); err == nil && (first == 0 || first%Length != 0 || uint64(first)+2*Length > 1<<32) {
			t.Errorf("%q: got ids from %d on", raw, first)
		}
	})
}
