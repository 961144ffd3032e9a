// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/core/localvolume"
	"keelson/client/clienttest"
)

func localPV(
	name, node string, policy corev1.PersistentVolumeReclaimPolicy, phase corev1.PersistentVolumePhase, going bool,
) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			ResourceVersion: "1",
			Labels:          map[string]string{localvolume.NodeLabel: node},
			Annotations:     map[string]string{volume.AnnDynamicallyProvisioned: localvolume.Provisioner},
			Finalizers:      []string{localvolume.Finalizer, "example.com/other"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: policy,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: "/elsewhere"},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
	if going {
		now := metav1.Now()
		pv.DeletionTimestamp = &now
	}
	return pv
}

var pvResource = corev1.SchemeGroupVersion.WithResource("persistentvolumes")

func TestLocalDirs(t *testing.T) {
	const del, retain = corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain
	vs := []*corev1.PersistentVolume{
		localPV("doomed", "n", del, corev1.VolumeReleased, true), localPV("kept", "n", retain, corev1.VolumeReleased,
			true),
		localPV("bound", "n", del, corev1.VolumeBound, true), localPV("staying", "n", del, corev1.VolumeReleased,
			false),
		localPV("foreign", "m", del, corev1.VolumeReleased, true),
	}
	clientset := clienttest.New()
	for _, v := range vs {
		must(t, clientset.Tracker().Add(v))
	}
	dir := filepath.Join(t.TempDir(), "volumes")
	localDirs := NewLocalDirs(dir, "n", clientset, slog.New(slog.DiscardHandler))
	if err := localDirs.Make("../escape"); err == nil {
		t.Error("a volume outside of the directory was made")
	}
	outside := filepath.Join(t.TempDir(), "precious")
	must(t, os.WriteFile(outside, nil, 0o600))
	for _, name := range []string{"doomed", "kept", "bound", "staying", "foreign", "unknown"} {
		must(t, localDirs.Make(name))
		must(t, localDirs.Make(name)) // again changes nothing
		must(t, os.WriteFile(filepath.Join(dir, name, "file"), []byte(name), 0o600))
		must(t, os.Symlink(outside, filepath.Join(dir, name, "link")))
	}
	st, err := os.Stat(localDirs.Path("doomed"))
	if err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	done := make(chan struct{})
	go func() {
		localDirs.Run(t.Context())
		close(done)
	}() // ends with the test
	t.Cleanup(func() { <-done })
	finalizers := func(name string) int {
		v, err := clientset.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		return len(v.Finalizers)
	}
	clienttest.Until(t, clientset.Tracker(), pvResource, "the volumes that are over are let go", func() bool {
		return finalizers("doomed") == 1 && finalizers("kept") == 1
	})
	for name, want := range map[string]struct {
		there      bool
		finalizers int
	}{
		"doomed":  {false, 1},
		"kept":    {true, 1},
		"bound":   {true, 2},
		"staying": {true, 2},
		"foreign": {true, 2},
	} {
		_, err := os.Stat(localDirs.Path(name))
		if (err == nil) != want.there || finalizers(name) != want.finalizers {
			t.Errorf("%s: directory %v, %d finalizers; want %+v", name, err, finalizers(name), want)
		}
	}
	if _, err := os.Stat(localDirs.Path("unknown")); err != nil {
		t.Errorf("a directory of no volume: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("what a link in a volume named: %v", err)
	}
}

// slowly is a client whose patches of one volume wait.
type slowly struct {
	kubernetes.Interface
	name    string
	waiting chan struct{}
}

// IsWatchListSemanticsUnSupported answers informers for the fake, which has this method too.
func (slowly) IsWatchListSemanticsUnSupported() bool { return true }

func (s slowly) CoreV1() corev1client.CoreV1Interface { return slowCore{s.Interface.CoreV1(), s} }

type slowCore struct {
	corev1client.CoreV1Interface
	s slowly
}

func (c slowCore) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return slowVolumes{c.CoreV1Interface.PersistentVolumes(), c.s}
}

type slowVolumes struct {
	corev1client.PersistentVolumeInterface
	s slowly
}

func (v slowVolumes) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.PersistentVolume, error) {
	if name == v.s.name {
		close(v.s.waiting)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return v.PersistentVolumeInterface.Patch(ctx, name, pt, data, o, sub...)
}

// TestSlowVolumeHoldsUpNoOther: one volume's removal does not end; the others go.
func TestSlowVolumeHoldsUpNoOther(t *testing.T) {
	fakes := clienttest.New()
	add := func(name string) {
		v := localPV(name, "n", corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased, true)
		_, err := fakes.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{})
		must(t, err)
	}
	c := slowly{fakes, "slow", make(chan struct{})}
	localDirs := NewLocalDirs(filepath.Join(t.TempDir(), "volumes"), "n", c, slog.New(slog.DiscardHandler))
	add("slow")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		localDirs.Run(ctx)
		close(done)
	}() // ends with the test
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case <-c.waiting:
	case <-time.After(time.Minute):
		t.Fatal("the slow volume's turn does not come")
	}
	must(t, localDirs.Make("quick"))
	add("quick")
	clienttest.Until(t, fakes.Tracker(), pvResource, "one volume is held up by no other", func() bool {
		v, err := fakes.CoreV1().PersistentVolumes().Get(t.Context(), "quick", metav1.GetOptions{})
		must(t, err)
		return len(v.Finalizers) == 1
	})
}
