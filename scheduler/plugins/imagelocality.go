// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// ImageLocality prefers nodes that have the pod's images, the more the larger they are and the more nodes have them
// (so that one node with the image does not get every pod).
type ImageLocality struct{}

// Name is the plugin's.
func (ImageLocality) Name() string { return "ImageLocality" }

// Between these sizes, the latter per container, the score rises from 0 to MaxScore.
const (
	smallImage = 23 * 1024 * 1024
	largeImage = 1000 * 1024 * 1024
)

// PreScore has nothing to say when no node has any of the images.
func (ImageLocality) PreScore(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	var l imageLocality
	spec := &pod.Pod.Spec
	add := func(name string) {
		if name == "" {
			return
		}
		name = state.NormalImage(name)
		if n := s.ImageNodes(name); n > 0 {
			l.images = append(l.images, weighedImage{name, float64(n) / float64(len(s.Nodes))})
		}
	}
	for i := range spec.InitContainers {
		add(spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		add(spec.Containers[i].Image)
	}
	l.count = int64(len(spec.InitContainers) + len(spec.Containers) + imageVolumes(spec, add))
	if len(l.images) == 0 {
		return nil
	}
	return &l
}

func imageVolumes(spec *corev1.PodSpec, add func(string)) (count int) {
	for i := range spec.Volumes {
		if img := spec.Volumes[i].Image; img != nil {
			count++
			add(img.Reference)
		}
	}
	return count
}

type imageLocality struct {
	images []weighedImage
	count  int64
}

type weighedImage struct {
	name   string
	spread float64 // part of the nodes that have it
}

func (l *imageLocality) Score(n *state.NodeInfo) int64 {
	if len(n.Images) == 0 {
		return 0
	}
	var sum int64
	for _, img := range l.images {
		sum += int64(float64(n.Images[img.name]) * img.spread)
	}
	most := largeImage * l.count
	sum = min(max(sum, smallImage), most)
	return framework.MaxScore * (sum - smallImage) / (most - smallImage)
}

// Local: see framework.Local.
func (*imageLocality) Local() {}

// Absolute: see framework.Absolute.
func (*imageLocality) Absolute() {}

func (*imageLocality) Normalize([]int64) {}
