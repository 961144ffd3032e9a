// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Event is an audit event (audit.k8s.io/v1).
type Event struct {
	metav1.TypeMeta          `json:",inline"`
	Level                    Level                      `json:"level"`
	AuditID                  string                     `json:"auditID"`
	Stage                    Stage                      `json:"stage"`
	RequestURI               string                     `json:"requestURI"`
	Verb                     string                     `json:"verb"`
	User                     authenticationv1.UserInfo  `json:"user"`
	ImpersonatedUser         *authenticationv1.UserInfo `json:"impersonatedUser,omitempty"`
	AuthenticationMetadata   *AuthenticationMetadata    `json:"authenticationMetadata,omitempty"`
	SourceIPs                []string                   `json:"sourceIPs,omitempty"`
	UserAgent                string                     `json:"userAgent,omitempty"`
	ObjectRef                *ObjectReference           `json:"objectRef,omitempty"`
	ResponseStatus           *metav1.Status             `json:"responseStatus,omitempty"`
	RequestObject            json.RawMessage            `json:"requestObject,omitempty"`
	ResponseObject           json.RawMessage            `json:"responseObject,omitempty"`
	RequestReceivedTimestamp metav1.MicroTime           `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime           `json:"stageTimestamp"`
	Annotations              map[string]string          `json:"annotations,omitempty"`
}

// AuthenticationMetadata names the permission by which a user impersonated another.
type AuthenticationMetadata struct {
	ImpersonationConstraint string `json:"impersonationConstraint,omitempty"`
}

// ObjectReference is the object of a request.
type ObjectReference struct {
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Subresource     string `json:"subresource,omitempty"`
}

// Version and kinds of what goes out.
const (
	apiVersion = "audit.k8s.io/v1"
	kindEvent  = "Event"
	kindList   = "EventList"
)

// NewEvent returns an event with its kind.
func NewEvent() *Event {
	return &Event{TypeMeta: metav1.TypeMeta{Kind: kindEvent, APIVersion: apiVersion}}
}

// eventList is the body of a webhook request.
type eventList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []*Event `json:"items"`
}

// WithoutManagedFields removes metadata.managedFields from the JSON of an object, or from the items of a list.
func WithoutManagedFields(object []byte) []byte {
	var doc map[string]any
	if json.Unmarshal(object, &doc) != nil {
		return object
	}
	dropManagedFields(doc)
	if items, ok := doc["items"].([]any); ok {
		for _, it := range items {
			if m, ok := it.(map[string]any); ok {
				dropManagedFields(m)
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return object
	}
	return out
}

func dropManagedFields(doc map[string]any) {
	if meta, ok := doc["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
}
