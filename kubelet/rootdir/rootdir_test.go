// SPDX-License-Identifier: Apache-2.0

package rootdir

import "testing"

func TestTwoNames(t *testing.T) {
	dir := Dir("/data/kubelet")
	for p, want := range map[string]string{
		"/var/lib/kubelet":               "/data/kubelet",
		"/var/lib/kubelet/":              "/data/kubelet",
		"/var/lib/kubelet/pods":          "/data/kubelet/pods",
		"/var/lib/kubelet/plugins/a/../": "/data/kubelet/plugins",
		"/var/lib/kubelet2":              "/var/lib/kubelet2",
		"/var/lib":                       "/var/lib",
		"/data/kubelet/pods":             "/data/kubelet/pods",
		"/var/lib/kubelet/../x":          "/var/lib/kubelet/../x",
	} {
		if got := dir.Resolve(p); got != want {
			t.Errorf("Real(%q): got %q, want %q", p, got, want)
		}
	}
	for p, want := range map[string]struct {
		rel          string
		standard, ok bool
	}{
		"/var/lib/kubelet/plugins/x/csi.sock": {"plugins/x/csi.sock", true, true},
		"/data/kubelet/plugins/x/csi.sock":    {"plugins/x/csi.sock", false, true},
		"/run/csi.sock":                       {"/run/csi.sock", false, false},
		"/var/lib/kubelet/../../etc":          {"/var/etc", false, false},
	} {
		rel, standard, ok := dir.Rel(p)
		if ok != want.ok || standard != want.standard || ok && rel != want.rel {
			t.Errorf("Rel(%q): got %q %v %v, want %+v", p, rel, standard, ok, want)
		}
	}
	if got := dir.PathFor("/data/kubelet/pods/u", true); got != "/var/lib/kubelet/pods/u" {
		t.Errorf("by the standard name: got %q", got)
	}
	if got := dir.PathFor("/data/kubelet/pods/u", false); got != "/data/kubelet/pods/u" {
		t.Errorf("by its own name: got %q", got)
	}
	if same := Dir(Standard); same.Resolve("/var/lib/kubelet/pods") != "/var/lib/kubelet/pods" {
		t.Error("a kubelet at the standard place has another name for it")
	}
}
