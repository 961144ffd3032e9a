// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ingress says which controller serves an Ingress, or why none does, and which of its backends do not exist.
func Ingress(i *networkingv1.Ingress, classes []networkingv1.IngressClass, services []corev1.Service) *Answer {
	answer := of("ingress", i)
	answer.State = "not served"
	if len(i.Status.LoadBalancer.Ingress) > 0 {
		at := i.Status.LoadBalancer.Ingress[0]
		answer.State = "served at " + or(at.Hostname, at.IP)
	} else {
		unserved(answer, i, classes)
	}
	backends(answer, i, services)
	if len(answer.Why) == 0 {
		answer.because("a controller has written its address, and its backends exist")
		answer.cannot("what that controller made of its rules: see its own log")
	}
	return answer
}

func unserved(answer *Answer, i *networkingv1.Ingress, classes []networkingv1.IngressClass) {
	want := or(str(i.Spec.IngressClassName), i.Annotations["kubernetes.io/ingress.class"])
	at := slices.IndexFunc(classes, func(c networkingv1.IngressClass) bool { return c.Name == want })
	names := make([]string, len(classes))
	for n := range classes {
		names[n] = classes[n].Name
	}
	switch {
	case want == "" && len(classes) == 0:
		answer.because("it names no IngressClass, and there is none: no controller for ingresses seems to be " +
			"installed. " +
			"Keelson has none of its own")
		answer.do("install a controller for ingresses, such as Traefik or Contour, and name its class in " +
			"spec.ingressClassName")
	case want == "":
		answer.because("it names no IngressClass, and had no default one when it was made")
		answer.do("name one in spec.ingressClassName (there are: %s)", some(names))
	case at < 0:
		answer.because("there is no IngressClass %s", want)
		answer.do("install the controller that brings it, or name another class (there are: %s)",
			or(some(names), "none"))
	default:
		answer.because("its class %s leaves it to the controller %s, which has not written an address into its status",
			want, classes[at].Spec.Controller)
		answer.do("see whether that controller runs, and its log; one that serves by host ports may never write an " +
			"address")
		answer.cannot("whether a controller serves it without writing so")
	}
}

// backends says which Services or ports of the rules do not exist.
func backends(answer *Answer, i *networkingv1.Ingress, services []corev1.Service) {
	var all []networkingv1.IngressBackend
	if i.Spec.DefaultBackend != nil {
		all = append(all, *i.Spec.DefaultBackend)
	}
	for _, r := range i.Spec.Rules {
		if r.HTTP != nil {
			for _, p := range r.HTTP.Paths {
				all = append(all, p.Backend)
			}
		}
	}
	named := map[string]bool{}
	for _, b := range all {
		wrong := ""
		if b.Service != nil {
			wrong = backend(b.Service, services)
		}
		if wrong != "" && !named[wrong] && len(named) < mostNamed {
			named[wrong] = true
			answer.because("%s", wrong)
		}
	}
}

func backend(b *networkingv1.IngressServiceBackend, services []corev1.Service) string {
	at := slices.IndexFunc(services, func(s corev1.Service) bool { return s.Name == b.Name })
	if at < 0 {
		return fmt.Sprintf("its backend, the service %s, does not exist", b.Name)
	}
	if !slices.ContainsFunc(services[at].Spec.Ports, func(p corev1.ServicePort) bool {
		return b.Port.Name != "" && p.Name == b.Port.Name || b.Port.Number != 0 && p.Port == b.Port.Number
	}) {
		port := b.Port.Name
		if port == "" {
			port = fmt.Sprint(b.Port.Number)
		}
		return fmt.Sprintf("its backend, the service %s, has no port %s", b.Name, port)
	}
	return ""
}

// Definition is the part of a CustomResourceDefinition that is read.
type Definition struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// Explain explains why a definition is not established, or is not deleted.
func (d *Definition) Explain() *Answer {
	answer := of("customresourcedefinition", d)
	answer.State = "Established"
	e := condition(d.Status.Conditions, "Established")
	established := e != nil && e.Status == metav1.ConditionTrue
	if !established {
		answer.State = "not established"
		if e != nil && e.Message != "" && e.Reason != "NotAccepted" {
			answer.because("%s", answer.quote(e.Reason, e.Message))
		}
	}
	for _, c := range d.Status.Conditions {
		wrong := c.Status == metav1.ConditionTrue && (c.Type == "Terminating" || c.Type == "NonStructuralSchema") ||
			c.Status == metav1.ConditionFalse && (c.Type == "NamesAccepted" ||
				c.Type == "KubernetesAPIApprovalPolicyConformant")
		if !wrong {
			continue
		}
		answer.because("%s: %s", c.Type, answer.quote(c.Reason, c.Message))
		switch c.Type {
		case "NamesAccepted":
			answer.do(
				"another definition, or a resource of the server's own, has one of its names: give it others in " +
					"spec.names, or delete the other")
		case "NonStructuralSchema":
			answer.do("correct its schema as the message says")
		case "KubernetesAPIApprovalPolicyConformant":
			answer.do("groups of k8s.io and kubernetes.io need the annotation api-approved.kubernetes.io; take a " +
				"group of " +
				"your own")
		}
	}
	if d.DeletionTimestamp != nil {
		answer.State = "Terminating"
		answer.because("it is being deleted, and the finalizers %s wait for its objects to go",
			or(some(d.Finalizers), "(none)"))
		if plural, group, ok := strings.Cut(d.Name, "."); ok {
			answer.do("`kubectl get %s.%s -A -o yaml | grep -A3 finalizers:` shows which of its objects are held, "+
				"and by "+
				"whom", plural, group)
		}
	}
	if len(answer.Why) == 0 && established {
		answer.because("its names are accepted and it is served")
	} else if len(answer.Why) == 0 {
		answer.because("the server has not looked at it yet")
	}
	return answer
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
