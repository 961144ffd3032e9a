// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
)

// A short pod can name one object many times, so the files of volumes from API objects are counted before they are
// made. They pass through memory, and those of secrets stay there.
const (
	maxVolume = 16 << 20
	maxPod    = 32 << 20
	// minNamespace is the least limit for all pods of a namespace on this node. Otherwise it is the
	// namespaceShare-th part of the memory.
	minNamespace   = 128 << 20
	namespaceShare = 64
	// minMemory is the least size of the file system for secrets; otherwise it is the memoryShare-th part of the
	// memory.
	minMemory   = 256 << 20
	memoryShare = 8
	page        = 4 << 10
)

// The number of things that a pod's volumes make on the node.
const (
	maxVolumes  = 256 // of a pod
	maxSubPaths = 512 // mounts with a subPath in all containers of a pod; the kernel has 100,000 mounts
	maxIssued   = 64  // tokens and certificates of a pod: each is a request, and a signature
)

// ledger counts the files of volumes from API objects.
type ledger struct {
	limit int64 // of a namespace

	mu         sync.Mutex
	pods       map[string]map[string]int64 // uid -> volume -> bytes
	namespaces map[string]int64
	of         map[string]string // uid -> namespace
	// found are the bytes of pods that an earlier run has set up and this one has not yet. Their namespaces are not
	// known, so they count for every namespace.
	found map[string]int64
	total int64 // of found
}

func newLedger(memory int64) *ledger {
	return &ledger{
		limit:      max(minNamespace, memory/namespaceShare),
		pods:       map[string]map[string]int64{},
		namespaces: map[string]int64{},
		of:         map[string]string{},
		found:      map[string]int64{},
	}
}

// find counts what an earlier run has left of a pod.
func (l *ledger) find(uid string, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found[uid] += size
	l.total += size
}

// knownLocked ends that a pod counts for every namespace.
func (l *ledger) knownLocked(uid string) {
	l.total -= l.found[uid]
	delete(l.found, uid)
}

// sizeOfFile returns what a file takes, at most: whole pages, and one for each directory above it.
func sizeOfFile(path string, size int) int64 {
	pages := max((size+page-1)/page, 1) + strings.Count(path, "/")
	return int64(pages) * page
}

// begin starts to count a volume from zero and returns what was counted before. set puts that back when the volume
// is not replaced.
func (l *ledger) begin(p *corev1.Pod, volume string) (before int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.pods[string(p.UID)][volume]
	if l.pods[string(p.UID)] == nil {
		before = l.found[string(p.UID)] // stays if the first volume of this run fails
	}
	l.setLocked(p, volume, 0)
	return before
}

func (l *ledger) set(p *corev1.Pod, volume string, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(p, volume, size)
}

func (l *ledger) setLocked(p *corev1.Pod, volume string, size int64) {
	uid := string(p.UID)
	if l.pods[uid] == nil {
		l.pods[uid] = map[string]int64{}
		l.of[uid] = p.Namespace
		l.knownLocked(uid)
	}
	l.namespaces[p.Namespace] += size - l.pods[uid][volume]
	l.pods[uid][volume] = size
}

// add counts one file more, or returns an error and counts nothing.
func (l *ledger) add(pod *corev1.Pod, volume string, size int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	volumes := l.pods[string(pod.UID)]
	var total int64
	for _, n := range volumes {
		total += n
	}
	switch {
	case volumes[volume]+size > maxVolume:
		return fmt.Errorf("its files take more than %d bytes, the limit of a volume; use fewer or smaller files",
			maxVolume)
	case total+size > maxPod:
		return fmt.Errorf("the files of the pod's ConfigMaps, Secrets and other API volumes take more than %d bytes; "+
			"use fewer or smaller files", maxPod)
	case l.namespaces[pod.Namespace]+l.total+size > l.limit:
		return fmt.Errorf("the files of API volumes of namespace %s take more than %d bytes on this node; "+
			"use smaller objects, or other nodes", pod.Namespace, l.limit)
	}
	l.setLocked(pod, volume, volumes[volume]+size)
	return nil
}

// forget drops a pod whose volumes are removed.
func (l *ledger) forget(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	namespace := l.of[uid]
	for _, n := range l.pods[uid] {
		l.namespaces[namespace] -= n
	}
	if l.namespaces[namespace] == 0 {
		delete(l.namespaces, namespace)
	}
	delete(l.pods, uid)
	delete(l.of, uid)
	l.knownLocked(uid)
}

// checkNumbers rejects a pod with too many volumes, mounts of subPaths, or tokens.
func checkNumbers(pod *corev1.Pod) error {
	if n := len(pod.Spec.Volumes); n > maxVolumes {
		return fmt.Errorf("the pod has %d volumes, more than %d; merge some of them", n, maxVolumes)
	}
	issued := 0
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Projected; v != nil {
			issued += issues(v)
		}
	}
	if issued > maxIssued {
		return fmt.Errorf("the pod asks for %d tokens and certificates, more than %d; use one of each kind several "+
			"times",
			issued, maxIssued)
	}
	if n := subPaths(pod); n > maxSubPaths {
		return fmt.Errorf("the pod's containers mount %d subPaths, more than %d; mount whole volumes", n, maxSubPaths)
	}
	return nil
}

// issues counts the tokens and certificates of a projected volume.
func issues(v *corev1.ProjectedVolumeSource) int {
	n := 0
	for i := range v.Sources {
		if v.Sources[i].ServiceAccountToken != nil || v.Sources[i].PodCertificate != nil {
			n++
		}
	}
	return n
}

// subPaths counts the mounts of subPaths in all containers.
func subPaths(p *corev1.Pod) int {
	n := 0
	for c := range podinfo.All(p) {
		for i := range c.VolumeMounts {
			if c.VolumeMounts[i].SubPath != "" || c.VolumeMounts[i].SubPathExpr != "" {
				n++
			}
		}
	}
	return n
}
