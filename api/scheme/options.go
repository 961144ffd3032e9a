// SPDX-License-Identifier: Apache-2.0

package scheme

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// addOptions teaches s to read the options of core/v1 from URL queries, as the streaming subresources and the
// proxies need; metav1's own are registered with it.
func addOptions(s *runtime.Scheme) error {
	for _, opts := range []runtime.Object{
		&corev1.PodLogOptions{}, &corev1.PodExecOptions{}, &corev1.PodAttachOptions{}, &corev1.PodPortForwardOptions{},
		&corev1.PodProxyOptions{}, &corev1.NodeProxyOptions{}, &corev1.ServiceProxyOptions{},
	} {
		read := func(in, out any, _ conversion.Scope) error {
			return readQuery(*in.(*url.Values), reflect.ValueOf(out).Elem())
		}
		if err := s.AddConversionFunc((*url.Values)(nil), opts, read); err != nil {
			return fmt.Errorf("register query of %T: %w", opts, err)
		}
	}
	return nil
}

// readQuery sets the fields of the struct out that have a JSON name in q.
func readQuery(q url.Values, out reflect.Value) error {
	for i := range out.NumField() {
		name, _, _ := strings.Cut(out.Type().Field(i).Tag.Get("json"), ",")
		values, ok := q[name]
		if name == "" || !ok || len(values) == 0 {
			continue
		}
		if err := setField(out.Field(i), values); err != nil {
			return fmt.Errorf("query parameter %s: %w", name, err)
		}
	}
	return nil
}

// setField parses values into value by the rules of Kubernetes' queries: of several values the first counts unless
// value is a list; a bool is true unless it says false or 0.
func setField(value reflect.Value, values []string) error {
	switch value.Kind() {
	case reflect.Slice:
		list := reflect.MakeSlice(value.Type(), len(values), len(values))
		for i := range values {
			if err := setField(list.Index(i), values[i:]); err != nil {
				return err
			}
		}
		value.Set(list)
	case reflect.Pointer:
		if values[0] == "" {
			return nil
		}
		p := reflect.New(value.Type().Elem())
		if err := setField(p.Elem(), values); err != nil {
			return err
		}
		value.Set(p)
	case reflect.String:
		value.SetString(values[0])
	case reflect.Bool:
		value.SetBool(!strings.EqualFold(values[0], "false") && values[0] != "0")
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(values[0], 10, value.Type().Bits())
		if err != nil {
			return err
		}
		value.SetInt(n)
	case reflect.Struct:
		t, err := time.Parse(time.RFC3339, values[0])
		if err != nil {
			return err
		}
		value.Set(reflect.ValueOf(metav1.Time{Time: t}))
	default:
		return fmt.Errorf("cannot hold %s", value.Type())
	}
	return nil
}
