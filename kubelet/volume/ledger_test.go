// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func largeObjects() *objects {
	value := strings.Repeat("x", 1<<20-100)
	small := map[string]string{}
	for i := range 20_000 {
		small[fmt.Sprintf("key-%d", i)] = "value"
	}
	return &objects{
		maps:    map[string]map[string]string{"one": {"k": value}, "small": small},
		secrets: map[string]map[string]string{"one": {"k": value}, "small": small},
	}
}

// named returns n items that write one key to different files, below so many directories.
func named(n, directories int) []corev1.KeyToPath {
	out := make([]corev1.KeyToPath, n)
	for i := range out {
		out[i] = corev1.KeyToPath{Key: "k", Path: strings.Repeat("d/", directories) + fmt.Sprintf("%d/f%d", i, i)}
	}
	return out
}

func name(s string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: s} }

func sources(n int, one corev1.VolumeProjection) []corev1.VolumeProjection {
	out := make([]corev1.VolumeProjection, n)
	for i := range out {
		out[i] = one
	}
	return out
}

// TestVolumesThatMultiply has short volumes that name one object many times. Each fails before its files exist.
func TestVolumesThatMultiply(t *testing.T) {
	annotations := make([]corev1.DownwardAPIVolumeFile, 3000)
	for i := range annotations {
		annotations[i] = corev1.DownwardAPIVolumeFile{
			Path:     fmt.Sprint(i),
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"},
		}
	}
	project := func(n int, one corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources(n, one)}}
	}
	const tooLarge = "its files take more than 16777216 bytes"
	for what, tt := range map[string]struct {
		source corev1.VolumeSource
		want   string
	}{
		"items of a ConfigMap": {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: name("one"),
			Items:                named(2000, 0),
		}}, tooLarge},
		"items of a Secret": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "one",
			Items:      named(2000, 0),
		}}, tooLarge},
		"directories of items": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "one",
			Items:      named(10, 2000),
		}}, tooLarge},
		"small files": {
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "small"}}, tooLarge,
		},
		"one ConfigMap projected": {
			project(3000, corev1.VolumeProjection{
				ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: name("one")},
			}), tooLarge,
		},
		"one Secret projected": {
			project(3000, corev1.VolumeProjection{
				Secret: &corev1.SecretProjection{LocalObjectReference: name("one")},
			}), tooLarge,
		},
		"annotations": {
			corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: annotations}}, tooLarge,
		},
		"annotations projected": {
			project(1, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: annotations}}),
			tooLarge,
		},
		"a missing key, many times": {
			project(3000, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: name("one"),
				Items:                []corev1.KeyToPath{{Key: "x", Path: "x"}},
			}}),
			"references non-existent config key: x",
		},
		"tokens": {
			project(3000, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "t",
			}}),
			"the pod asks for 3000 tokens and certificates, more than 64",
		},
		"certificates": {
			project(3000, corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
				KeyType: "RSA4096",
				KeyPath: "k",
			}}),
			"the pod asks for 3000 tokens and certificates, more than 64",
		},
	} {
		t.Run(what, func(t *testing.T) {
			objects := largeObjects()
			m := manager(t, objects)
			p := volumes(vol("v", tt.source))
			p.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := m.SetUp(t.Context(), Input{Pod: p})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 2000 {
				t.Errorf("got %.2000v, want an error with %q", err, tt.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 80<<20 {
				t.Errorf("%d MB were allocated, want 80 at most", n>>20)
			}
			if objects.tokens > 0 || len(objects.requests) > 0 {
				t.Errorf("%d tokens and %d certificates were requested, want none", objects.tokens,
					len(objects.requests))
			}
			if n := m.ledger.namespaces["ns"]; n != 0 {
				t.Errorf("%d bytes are counted for a volume that was not made", n)
			}
			must(t, m.TearDown(t.Context(), "u"))
		})
	}
}

// TestNumberOfVolumes: the numbers of a pod's volumes and subPaths are limited, too.
func TestNumberOfVolumes(t *testing.T) {
	m := manager(t, &objects{})
	many := volumes()
	for i := range maxVolumes + 1 {
		many.Spec.Volumes = append(many.Spec.Volumes,
			vol(fmt.Sprint("v", i), corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	}
	paths := volumes(vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	for i := range maxSubPaths + 1 {
		c := &paths.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
			Name:      "v",
			MountPath: fmt.Sprint("/", i),
			SubPath:   fmt.Sprint(i),
		})
	}
	for want, p := range map[string]*corev1.Pod{
		"the pod has 257 volumes, more than 256": many,
		"mount 513 subPaths, more than 512":      paths,
	} {
		if _, err := m.SetUp(t.Context(), Input{Pod: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestNamespaceShare: pods of one namespace share its bytes, and give them back; another namespace has its own.
func TestNamespaceShare(t *testing.T) {
	m := manager(t, largeObjects())
	pod := func(namespace string, i int) *corev1.Pod {
		p := volumes(
			vol("v", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "one", Items: named(15, 0)}}))
		p.Namespace = namespace
		p.UID = types.UID(fmt.Sprint(namespace, i))
		return p
	}
	try := func(p *corev1.Pod) error {
		_, err := m.SetUp(t.Context(), Input{Pod: p})
		return err
	}
	var err error
	made := 0
	for err == nil && made < 100 {
		if err = try(pod("ns", made)); err == nil {
			made++
		}
	}
	if want := "API volumes of namespace ns take more than 134217728 bytes on this node"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Fatalf("after %d pods: got %v, want %q", made, err, want)
	}
	if made != 8 {
		t.Errorf("%d pods of 15 MiB were made, want 8", made)
	}
	must(t, try(pod("ns", 0))) // again: it is counted once
	must(t, try(pod("other", 0)))
	must(t, m.TearDown(t.Context(), "ns0"))
	must(t, m.Forget("ns1"))
	must(t, try(pod("ns", 100)))
	must(t, try(pod("ns", 101)))
	for i := range 102 {
		must(t, m.Forget(fmt.Sprint("ns", i)))
	}
	again := New(Config{Dir: m.dir, Memory: m.memory, Sources: largeObjects(), Log: m.log}) // the next start, with pods of both namespaces
	must(t, try(pod("other", 1)))
	must(t, again.Prepare())
	if got := again.ledger.total; got != 2*15<<20 {
		t.Errorf("after another start %d bytes are counted, want those of two pods", got)
	}
	must(t, again.Forget("other1"))
	gone := pod("other", 0)
	gone.Spec.Volumes[0].Secret.SecretName = "deleted meanwhile"
	if _, err := again.SetUp(t.Context(), Input{Pod: gone}); err == nil {
		t.Error("a missing secret is no error")
	}
	if got := again.ledger.namespaces["other"]; got != 15<<20 {
		t.Errorf("after a failed SetUp %d bytes are counted: the files of the earlier run are still there", got)
	}
	_, err = again.SetUp(t.Context(), Input{Pod: pod("other", 0)})
	must(t, err)
	if n, found := again.ledger.namespaces["other"], again.ledger.total; n != 15*(1<<20+page) || found != 0 {
		t.Errorf("after the pod was set up again %d bytes count for its namespace, and %d for all; want 15 MiB and "+
			"none", n, found)
	}
	must(t, m.Forget("other0"))
	must(t, m.Forget("other1"))
	if len(m.ledger.pods)+len(m.ledger.namespaces)+len(m.ledger.of) != 0 {
		t.Errorf("the ledger keeps %v %v %v of pods that have gone", m.ledger.pods, m.ledger.namespaces, m.ledger.of)
	}
}

// TestSecretsHaveASize: the file system for secrets has a size, also when an earlier version has mounted it without
// one.
func TestSecretsHaveASize(t *testing.T) {
	needRoot(t)
	m := manager(t, &objects{})
	size := func() int64 {
		var fs unix.Statfs_t
		must(t, unix.Statfs(m.secrets(), &fs))
		return int64(fs.Blocks) * fs.Bsize // sizes of file systems
	}
	if got := size(); got != 1<<30 {
		t.Errorf("with 8 GiB of memory: %d bytes, want 1 GiB", got)
	}
	must(t, unix.Mount("", m.secrets(), "", unix.MS_REMOUNT, "size=2g"))
	must(t, m.Prepare())
	if got := size(); got != 1<<30 {
		t.Errorf("after another start: %d bytes, want 1 GiB", got)
	}
}
