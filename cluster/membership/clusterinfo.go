// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/auth"
	"keelson/pki"
)

// The ConfigMap that machines read before they trust the cluster, and what is in it. The names are kubeadm's.
const (
	clusterInfo  = "cluster-info"
	infoFile     = "kubeconfig"
	signatureOf  = "jws-kubeconfig-"
	requestsRole = "system:certificates.k8s.io:certificatesigningrequests:"
)

// publishClusterInfo creates the ConfigMap cluster-info, which machines read before they trust the cluster, and the
// RBAC of a join.
func publishClusterInfo(ctx context.Context, cl kubernetes.Interface, server string, ca []byte) error {
	c := clientcmdapi.NewConfig()
	c.Clusters[""] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	b, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write %s: %w", clusterInfo, err)
	}
	infos := cl.CoreV1().ConfigMaps(metav1.NamespacePublic)
	for {
		cm, err := infos.Get(ctx, clusterInfo, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			cm = &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespacePublic,
					Name:      clusterInfo,
				},
				Data: map[string]string{infoFile: string(b)},
			}
			_, err = infos.Create(ctx, cm, metav1.CreateOptions{})
		case err == nil && cm.Data[infoFile] != string(b):
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
			cm.Data[infoFile] = string(b)
			_, err = infos.Update(ctx, cm, metav1.UpdateOptions{})
		}
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s/%s: %w", metav1.NamespacePublic, clusterInfo, err)
		}
		break
	}
	return grantJoin(ctx, cl)
}

// RefreshClusterInfo puts the current CA bundle into cluster-info, if that has an earlier one of this CA. A controller
// signs it again.
func RefreshClusterInfo(ctx context.Context, cl kubernetes.Interface, ca *pki.Authority) error {
	infos := cl.CoreV1().ConfigMaps(metav1.NamespacePublic)
	cm, err := infos.Get(ctx, clusterInfo, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // no one joins by token
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", clusterInfo, err)
	}
	file, err := clientcmd.Load([]byte(cm.Data[infoFile]))
	if err != nil {
		return nil //nolint:nilerr // somebody else's
	}
	changed := false
	for _, of := range file.Clusters {
		have := of.CertificateAuthorityData
		if !bytes.Equal(have, ca.CertPEM()) && pki.ShareAuthority(have, slices.Concat(ca.CertPEM(), ca.RetiredPEM())) {
			of.CertificateAuthorityData = ca.CertPEM()
			changed = true
		}
	}
	if !changed {
		return nil
	}
	b, err := clientcmd.Write(*file)
	if err != nil {
		return fmt.Errorf("write %s: %w", clusterInfo, err)
	}
	cm = cm.DeepCopy()
	cm.Data[infoFile] = string(b)
	if _, err = infos.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write %s/%s: %w", metav1.NamespacePublic, clusterInfo, err)
	}
	return nil
}

// grantJoin lets anonymous users read cluster-info, bootstrap tokens request a node's certificate, and nodes renew
// theirs.
func grantJoin(ctx context.Context, cl kubernetes.Interface) error {
	there := func(err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	role, binding := clusterInfoReaders()
	_, err := cl.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{})
	_, err2 := cl.RbacV1().RoleBindings(role.Namespace).Create(ctx, binding, metav1.CreateOptions{})
	errs := []error{there(err), there(err2)}
	for _, clusterRole := range joinRoles() {
		_, err := cl.RbacV1().ClusterRoles().Create(ctx, clusterRole, metav1.CreateOptions{})
		errs = append(errs, there(err))
	}
	for _, b := range [][3]string{
		{"kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joiners},
		{"kubeadm:node-autoapprove-bootstrap", requestsRole + "nodeclient", joiners},
		{"kubeadm:node-autoapprove-certificate-rotation", requestsRole + "selfnodeclient", auth.Nodes},
		{nodesReader, nodesReader, joiners},
		{servingRequester, servingRequester, auth.Nodes},
	} {
		_, err := cl.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b[0]},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b[1]},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: b[2]}},
		}, metav1.CreateOptions{})
		errs = append(errs, there(err))
	}
	return errors.Join(errs...)
}

// The cluster roles of joinRoles.
const (
	nodesReader      = "kubeadm:get-nodes"
	servingRequester = "keelson:serving-certificates"
)

// clusterInfoReaders let everyone read the ConfigMap cluster-info, which has no secret: a machine that joins verifies
// it by its token.
func clusterInfoReaders() (*rbacv1.Role, *rbacv1.RoleBinding) {
	meta := metav1.ObjectMeta{
		Namespace: metav1.NamespacePublic,
		Name:      "kubeadm:bootstrap-signer-clusterinfo",
	}
	role := &rbacv1.Role{
		ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{
			APIGroups:     []string{""},
			Resources:     []string{"configmaps"},
			ResourceNames: []string{clusterInfo},
			Verbs:         []string{"get"},
		}},
	}
	return role, &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
	}
}

// joinRoles are the cluster roles of joining that Kubernetes' bootstrap policy does not have: a machine looks for a
// node of its name, and a node requests its serving certificate.
func joinRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{
		{
			ObjectMeta: metav1.ObjectMeta{Name: nodesReader},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: servingRequester},
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{"certificates.k8s.io"},
					Resources: []string{"certificatesigningrequests/selfnodeserver"},
					Verbs:     []string{"create"},
				},
			},
		},
	}
}
