// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/api/decisions"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// ImageLocality prefers nodes that have the pod's images. Large images count more. Images on few nodes count less, so
// that one node does not get all pods.
type ImageLocality struct{}

// Plugin returns the descriptor.
func (p ImageLocality) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:       "ImageLocality",
		PreScore:   p.PreScore,
		ScoreFacts: p.facts,
	}
}

// The score rises from 0 at smallImage to MaxScore at largeImage per container.
const (
	smallImage = 23 * 1024 * 1024
	largeImage = 1000 * 1024 * 1024
)

// PreScore returns nil when no node has any of the images.
func (ImageLocality) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	l := imagesOf(pod, s)
	if len(l.images) == 0 {
		return framework.NodeScorer{}
	}
	return framework.NodeScorer{Score: l.Score, NodeLocal: true}
}

// imagesOf returns the scorer for a pod, with those of its images that nodes have.
func imagesOf(pod *state.PodInfo, s *state.Snapshot) (l imageScorer) {
	spec := &pod.Pod.Spec
	add := func(name string) {
		if name == "" {
			return
		}
		name = state.NormalImage(name)
		if n := s.ImageNodes(name); n > 0 {
			l.images = append(l.images, scaledImage{name, float64(n) / float64(len(s.Nodes))})
		}
	}
	for i := range spec.InitContainers {
		add(spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		add(spec.Containers[i].Image)
	}
	l.count = int64(len(spec.InitContainers) + len(spec.Containers) + imageVolumes(spec, add))
	return l
}

// facts returns the sizes of the images.
func (ImageLocality) facts(pod *state.PodInfo, s *state.Snapshot, n *state.NodeInfo) *decisions.ScoreFacts {
	out := &decisions.ScoreFacts{MinImageBytes: smallImage}
	for _, img := range imagesOf(pod, s).images {
		out.Images = append(out.Images, decisions.NodeImage{
			Image: img.name,
			Bytes: n.Images[img.name],
			Nodes: int32(s.ImageNodes(img.name)),
			Of:    int32(len(s.Nodes)),
		})
	}
	return out
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

type imageScorer struct {
	images []scaledImage
	count  int64
}

type scaledImage struct {
	name   string
	spread float64 // the share of nodes that have the image, 0..1
}

func (l *imageScorer) Score(n *state.NodeInfo) int64 {
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
