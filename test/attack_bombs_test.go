// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// bomb is one kind of object, or of request, with which a tenant once took a cluster down.
type bomb struct {
	name  string
	count int // objects in the attack of all, or loops of requests
	alone int // the same in the attack of this kind alone; 0: one
	// object makes an object with a name; nil: there is none.
	object func(s *blast, name string) runtime.Object
	// attack sends requests until s.ctx is done; nil: there are none.
	attack func(s *blast)
	// bites reports whether the object with the name has come to where it does harm, or was refused, and how.
	bites func(s *blast, name string) (bool, string)
}

// bombs are all kinds, with at least fifty objects.
var bombs = []bomb{
	{name: "env-that-doubles", count: 4, object: envBomb, bites: podJudged},
	{name: "env-from-one-map", count: 3, object: envFromBomb, bites: podJudged},
	{name: "args-that-expand", count: 3, object: argsBomb, bites: podJudged},
	{name: "projected-3000-times", count: 3, object: projectedBomb, bites: podJudged},
	{name: "items-2000-times", count: 2, object: itemsBomb, bites: podJudged},
	{name: "manifest-of-20-mib", count: 3, object: image("manifest20"), bites: pulled("manifest20")},
	{name: "manifest-of-90-mib", count: 2, object: image("manifest90"), bites: pulled("manifest90")},
	{name: "review-with-errors", count: 2, attack: reviewBomb, bites: requested("review")},
	{name: "pod-with-errors", count: 2, attack: podErrorsBomb, bites: requested("pod")},
	{name: "load-balancer-on-the-api", count: 3, object: loadBalancerBomb, bites: stored},
	{name: "external-ip-on-the-api", count: 3, object: externalIPBomb, bites: stored},
	{name: "policy-of-4000-selectors", count: 4, object: policyBomb, bites: stored},
	{name: "hook-that-prints", count: 6, object: hookBomb, bites: warned("FailedPostStartHook")},
	{name: "connections", count: 2, attack: connectionsBomb, bites: requested("connection")},
	{name: "store-that-fills", count: 10, object: storeBomb, bites: stored},
	{name: "external-ip-of-a-pod", count: 2, object: stolenIPBomb, bites: stored},
	{name: "image-that-redirects", count: 3, object: image("redirect"), bites: pulled("redirect")},
	{name: "image-of-a-byte", count: 3, alone: 3, object: image("slow"), bites: pulled("slow")},
	{name: "processes", count: 2, object: processesBomb, bites: podJudged},
	{name: "user-namespace-with-devices", count: 3, object: userNamespaceBomb, bites: podJudged},
	{name: "read-only-if-possible", count: 2, object: readOnlyBomb, bites: podJudged},
}

// restricted is a pod that a namespace with the level restricted admits, with a line of shell.
func restricted(name, script string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: attacker},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			AutomountServiceAccountToken:  new(bool),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      new(int64(1000)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:    "main",
				Image:   "keelson.local/hello",
				Command: []string{"/hello", "sh", "-c", script},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(bool),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// envBomb: 26 variables, each twice the one before, in 1,563 bytes: 670 MB.
func envBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "sleep 1000")
	env := []corev1.EnvVar{{Name: "A0", Value: "0123456789"}}
	for i := 1; i <= 26; i++ {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("A%d", i), Value: fmt.Sprintf("$(A%d)$(A%d)", i-1, i-1)})
	}
	p.Spec.Containers[0].Env = env
	return p
}

func large() corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: "large"} }

// envFromBomb has the variables of a ConfigMap of 1 MB, 3,000 times.
func envFromBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "sleep 1000")
	for i := range 3000 {
		p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
			Prefix:       fmt.Sprintf("P%d_", i),
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: large()},
		})
	}
	return p
}

// argsBomb names a variable of 1 MB in 8.5 kB of arguments.
func argsBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "sleep 1000")
	key := &corev1.ConfigMapKeySelector{LocalObjectReference: large(), Key: "key"}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: key}}}
	p.Spec.Containers[0].Args = []string{strings.Repeat("$(A)", 2100)}
	return p
}

func withVolume(p *corev1.Pod, v corev1.VolumeSource) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return p
}

// projectedBomb projects one key of 1 MB to 3,000 files.
func projectedBomb(_ *blast, name string) runtime.Object {
	v := &corev1.ProjectedVolumeSource{}
	for i := range 3000 {
		v.Sources = append(v.Sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: large(),
			Items:                []corev1.KeyToPath{{Key: "key", Path: fmt.Sprintf("p%d", i)}},
		}})
	}
	return withVolume(restricted(name, "sleep 1000"), corev1.VolumeSource{Projected: v})
}

// itemsBomb has 2,000 files of one key of a ConfigMap.
func itemsBomb(_ *blast, name string) runtime.Object {
	v := &corev1.ConfigMapVolumeSource{LocalObjectReference: large()}
	for i := range 2000 {
		v.Items = append(v.Items, corev1.KeyToPath{Key: "key", Path: fmt.Sprintf("p%d", i)})
	}
	return withVolume(restricted(name, "sleep 1000"), corev1.VolumeSource{ConfigMap: v})
}

// image makes pods with an image of the hostile registry, each with one of its own.
func image(kind string) func(*blast, string) runtime.Object {
	return func(s *blast, name string) runtime.Object {
		p := restricted(name, "sleep 1000")
		p.Spec.Containers[0].Image = s.registry.addr + "/" + kind + "/" + name + ":1"
		return p
	}
}

// service sends a port to the attacker's own pod.
func service(name string, spec corev1.ServiceSpec, port int32) *corev1.Service {
	spec.Selector = map[string]string{"app": "x"}
	spec.Ports = []corev1.ServicePort{{Port: port}}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: attacker}, Spec: spec}
}

func loadBalancerBomb(s *blast, name string) runtime.Object {
	return service(name, corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, s.apiPort)
}

func externalIPBomb(s *blast, name string) runtime.Object {
	return service(name, corev1.ServiceSpec{ExternalIPs: []string{s.nodeIP}}, s.apiPort)
}

// stolenIPBomb takes addresses in the range of the pods.
func stolenIPBomb(_ *blast, name string) runtime.Object {
	return service(name, corev1.ServiceSpec{ExternalIPs: []string{"10.244.0.2", "10.244.0.3"}}, 80)
}

func policyBomb(_ *blast, name string) runtime.Object {
	rule := networkingv1.NetworkPolicyIngressRule{}
	for i := range 4000 {
		pods := &metav1.LabelSelector{MatchLabels: map[string]string{"a": fmt.Sprint(i)}}
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{PodSelector: pods})
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: attacker},
		Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}},
	}
}

// hookBomb prints 19 MB after each start, and fails.
func hookBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "sleep 1000")
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
		Exec: &corev1.ExecAction{Command: []string{"/hello", "sh", "-c", "cat /hello /hello /hello /hello; exit 1"}},
	}}
	return p
}

func storeBomb(_ *blast, name string) runtime.Object {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: attacker},
		Data:       map[string]string{"key": strings.Repeat(name, 1_000_000/len(name))},
	}
}

// processesBomb starts more processes than a pod may have.
func processesBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "for i in $(seq 5000); do sleep 1000 & done; wait")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("512Mi"),
		corev1.ResourceCPU:    resource.MustParse("200m"),
	}
	return p
}

func userNamespaceBomb(_ *blast, name string) runtime.Object {
	p := restricted(name, "sleep 1000")
	p.Spec.HostUsers = new(bool)
	return p
}

func readOnlyBomb(_ *blast, name string) runtime.Object {
	p := withVolume(restricted(name, "sleep 1000"), corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	p.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	p.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = new(corev1.RecursiveReadOnlyIfPossible)
	return p
}

// podJudged: the kubelet has started the pod, or says why it does not.
func podJudged(s *blast, name string) (bool, string) {
	pod, err := s.admin.CoreV1().Pods(attacker).Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	for _, c := range pod.Status.ContainerStatuses {
		switch w := c.State.Waiting; {
		case w == nil:
			return true, "it runs, or has run"
		case w.Reason != "ContainerCreating" && w.Reason != "PodInitializing":
			return true, fmt.Sprintf("%s: %.200s", w.Reason, w.Message)
		}
	}
	warnings := metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + name}
	if events, err := s.admin.CoreV1().Events(attacker).List(s.ctx, warnings); err == nil && len(events.Items) > 0 {
		return true, fmt.Sprintf("%s: %.200s", events.Items[0].Reason, events.Items[0].Message)
	}
	return false, string(pod.Status.Phase)
}

// warned: the kubelet has recorded an event about the pod.
func warned(reason string) func(*blast, string) (bool, string) {
	return func(s *blast, name string) (bool, string) {
		of := metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + name}
		events, err := s.admin.CoreV1().Events(attacker).List(s.ctx, of)
		return err == nil && len(events.Items) > 0, "event " + reason
	}
}

// pulled: the node has asked the registry for the image.
func pulled(kind string) func(*blast, string) (bool, string) {
	return func(s *blast, name string) (bool, string) {
		n := s.registry.requests(kind + "/" + name)
		return n > 0, fmt.Sprintf("%d requests of the node for %s", n, kind)
	}
}

// requested: an attack has got answers.
func requested(what string) func(*blast, string) (bool, string) {
	return func(s *blast, _ string) (bool, string) {
		n := s.registry.requests(what)
		return n > 0, fmt.Sprintf("%d requests (%s)", n, what)
	}
}

// stored: the object is there, or was refused, so that it is nowhere.
func stored(s *blast, name string) (bool, string) {
	var found []string
	if _, err := s.admin.CoreV1().Services(attacker).Get(s.ctx, name, metav1.GetOptions{}); err == nil {
		found = append(found, "Service")
	}
	if _, err := s.admin.CoreV1().ConfigMaps(attacker).Get(s.ctx, name, metav1.GetOptions{}); err == nil {
		found = append(found, "ConfigMap")
	}
	if _, err := s.admin.NetworkingV1().NetworkPolicies(attacker).Get(s.ctx, name, metav1.GetOptions{}); err == nil {
		found = append(found, "NetworkPolicy")
	}
	if len(found) == 0 {
		return true, "refused"
	}
	return true, "stored as " + found[0]
}

// reviewBomb asks for reviews of 60 kB with thousands of errors, without any role.
func reviewBomb(s *blast) {
	body := `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":` +
		`{"verb":"list","resource":"pods","labelSelector":{"requirements":[` +
		list(`{"key":"","operator":"X"}`, 2300) + `]}}}}`
	s.post("review", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", s.token, body)
}

// podErrorsBomb stores a pod of nearly 3 MB of which each variable is invalid, as the bystander: the attacker may
// create pods.
func podErrorsBomb(s *blast) {
	body := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"errors"},"spec":{"containers":[` +
		`{"name":"c","image":"i","env":[` + list(`{"name":"="}`, 200_000) + `]}]}}`
	s.post("pod", "/api/v1/namespaces/"+bystander+"/pods", s.user, body)
}

// list is n times an element of a JSON list.
func list(element string, n int) string {
	return strings.TrimSuffix(strings.Repeat(element+",", n), ",")
}

// post sends a request again and again, and leaves after two seconds each time.
func (s *blast) post(what, path, token, body string) {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // who attacks does not check
		ForceAttemptHTTP2: true,
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	for s.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader([]byte(body)))
		if err != nil {
			cancel()
			return
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		cancel()
		s.registry.count(what)
	}
}

// connectionsBomb takes connections with a token, and more without one.
func connectionsBomb(s *blast) {
	for s.ctx.Err() == nil {
		f := &flood{url: s.url, ctx: s.ctx}
		for i := range 300 {
			token := s.token
			if i%2 == 0 {
				token = ""
			}
			f.request(token)
			s.registry.count("connection")
		}
		f.close()
	}
}
