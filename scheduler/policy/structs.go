// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"path"
	"reflect"
	"strings"

	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// structs is the CEL type provider and adapter for Go structs. Expressions read fields by their JSON names. Fields are
// typed, so a wrong name is an error at compile time. A field that is not set reads as its type's zero value; has()
// reports whether it is set.
type structs struct {
	celtypes.Provider
	base   celtypes.Adapter
	byName map[string]*structType
	byType map[reflect.Type]*structType
}

type structType struct {
	*celtypes.Type
	fields map[string]*celtypes.FieldType
}

func newStructs(p celtypes.Provider, a celtypes.Adapter) *structs {
	return &structs{
		Provider: p,
		base:     a,
		byName:   map[string]*structType{},
		byType:   map[reflect.Type]*structType{},
	}
}

// declare adds a type with the given fields for the struct t.
func (s *structs) declare(name string, t reflect.Type, fields map[string]*celtypes.FieldType) *structType {
	st := &structType{celtypes.NewObjectType(name), fields}
	s.byName[name] = st
	s.byType[t] = st
	return st
}

// FindStructType implements types.Provider.
func (s *structs) FindStructType(name string) (*celtypes.Type, bool) {
	if st, ok := s.byName[name]; ok {
		return celtypes.NewTypeTypeWithParam(st.Type), true
	}
	return s.Provider.FindStructType(name)
}

// FindStructFieldNames implements types.Provider.
func (s *structs) FindStructFieldNames(name string) ([]string, bool) {
	st, ok := s.byName[name]
	if !ok {
		return s.Provider.FindStructFieldNames(name)
	}
	var out []string
	for f := range st.fields {
		out = append(out, f)
	}
	return out, true
}

// FindStructFieldType implements types.Provider.
func (s *structs) FindStructFieldType(name, field string) (*celtypes.FieldType, bool) {
	if st, ok := s.byName[name]; ok {
		f, ok := st.fields[field]
		return f, ok
	}
	return s.Provider.FindStructFieldType(name, field)
}

// NewValue implements types.Provider: expressions cannot construct objects.
func (s *structs) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := s.byName[name]; ok {
		return celtypes.NewErr("an expression cannot make a %s", name)
	}
	return s.Provider.NewValue(name, fields)
}

// NativeToValue implements types.Adapter for the values that getters return.
func (s *structs) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case ref.Val:
		return v
	case string, bool, int64, map[string]string:
		return s.base.NativeToValue(v)
	}
	switch t := reflect.TypeOf(v); {
	case t == nil:
	case t.Kind() == reflect.Pointer:
		if st, ok := s.byType[t.Elem()]; ok {
			return &object{st, v, s}
		}
	case t.Kind() == reflect.Struct && (s.byType[t] != nil || isSpecial(t)), t.Kind() == reflect.String:
		return s.NativeToValue(s.native(reflect.ValueOf(v))) // an element of a list or map
	}
	return s.base.NativeToValue(v)
}

var (
	quantityType    = reflect.TypeFor[resource.Quantity]()
	timeType        = reflect.TypeFor[metav1.Time]()
	microTimeType   = reflect.TypeFor[metav1.MicroTime]()
	durationType    = reflect.TypeFor[metav1.Duration]()
	intOrStringType = reflect.TypeFor[intstr.IntOrString]()
	stringMapType   = reflect.TypeFor[map[string]string]()
)

// isSpecial reports whether a struct is a scalar value in CEL.
func isSpecial(t reflect.Type) bool {
	return t == quantityType || t == timeType || t == microTimeType || t == durationType || t == intOrStringType
}

// typeOf returns the CEL type of a Go type.
func (s *structs) typeOf(typ reflect.Type) *celtypes.Type {
	switch typ {
	case quantityType:
		return apiservercel.QuantityType
	case timeType, microTimeType:
		return celtypes.TimestampType
	case durationType:
		return celtypes.DurationType
	case intOrStringType:
		return celtypes.DynType
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return s.typeOf(typ.Elem())
	case reflect.Bool:
		return celtypes.BoolType
	case reflect.String:
		return celtypes.StringType
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return celtypes.IntType
	case reflect.Float32, reflect.Float64:
		return celtypes.DoubleType
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			return celtypes.BytesType
		}
		return celtypes.NewListType(s.typeOf(typ.Elem()))
	case reflect.Map:
		return celtypes.NewMapType(celtypes.StringType, s.typeOf(typ.Elem()))
	case reflect.Struct:
		return s.structOf(typ).Type
	default:
		return celtypes.DynType
	}
}

func (s *structs) structOf(t reflect.Type) *structType {
	if st, ok := s.byType[t]; ok {
		return st
	}
	group := path.Base(path.Dir(t.PkgPath())) + "." + path.Base(t.PkgPath())
	st := s.declare(group+"."+t.Name(), t, map[string]*celtypes.FieldType{})
	s.addFields(st, t, t, nil)
	return st
}

func (s *structs) addFields(st *structType, root, t reflect.Type, at []int) {
	for i := range t.NumField() {
		structField := t.Field(i)
		name, _, _ := strings.Cut(structField.Tag.Get("json"), ",")
		index := append(append([]int{}, at...), i)
		switch {
		case name == "" && structField.Anonymous:
			s.addFields(st, root, structField.Type, index)
		case name == "" || name == "-" || name == "managedFields" || !structField.IsExported():
		default:
			get := func(target any) (reflect.Value, error) {
				v := reflect.ValueOf(target)
				if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem() != root {
					return v, fmt.Errorf("no such key: %s", name)
				}
				return v.Elem().FieldByIndex(index), nil
			}
			st.fields[name] = &celtypes.FieldType{
				Type: s.typeOf(structField.Type),
				IsSet: func(target any) bool {
					v, err := get(target)
					return err == nil && !v.IsZero()
				},
				GetFrom: func(target any) (any, error) {
					v, err := get(target)
					if err != nil {
						return nil, err
					}
					return s.native(v), nil
				},
			}
		}
	}
}

// native converts a field's value for a getter. Strings and string maps stay as they are, since CEL has fast paths for
// them.
func (s *structs) native(value reflect.Value) any {
	if value.Kind() == reflect.Pointer {
		if value.IsNil() {
			value = reflect.New(value.Type().Elem())
		}
		value = value.Elem()
	}
	switch t := value.Type(); {
	case t == stringMapType:
		return value.Interface()
	case isSpecial(t):
		return special(value.Interface())
	}
	switch value.Kind() {
	case reflect.Bool:
		return value.Bool()
	case reflect.String:
		return value.String()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return value.Int()
	case reflect.Float32, reflect.Float64:
		return value.Float()
	case reflect.Struct:
		return address(value)
	case reflect.Slice:
		if value.Type().Elem().Kind() == reflect.Uint8 {
			return value.Bytes()
		}
		return celtypes.NewDynamicList(s, value.Interface()) // wraps the slice without a copy
	case reflect.Map:
		return celtypes.NewDynamicMap(s, value.Interface())
	default:
		return celtypes.NullValue
	}
}

// address returns a pointer to a struct, or to a copy if it is not addressable.
func address(v reflect.Value) any {
	if v.CanAddr() {
		return v.Addr().Interface()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Interface()
}

func special(v any) any {
	switch v := v.(type) {
	case resource.Quantity:
		return apiservercel.Quantity{Quantity: &v}
	case metav1.Time:
		return celtypes.Timestamp{Time: v.Time}
	case metav1.MicroTime:
		return celtypes.Timestamp{Time: v.Time}
	case metav1.Duration:
		return celtypes.Duration{Duration: v.Duration}
	case intstr.IntOrString:
		if v.Type == intstr.String {
			return v.StrVal
		}
		return int64(v.IntVal)
	}
	return celtypes.NullValue
}

// object is a struct as a CEL value.
type object struct {
	st      *structType
	pointer any // to the struct
	structs *structs
}

func (o *object) ConvertToNative(t reflect.Type) (any, error) {
	if reflect.TypeOf(o.pointer).AssignableTo(t) {
		return o.pointer, nil
	}
	return nil, fmt.Errorf("a %s is no %v", o.st.TypeName(), t)
}

func (o *object) ConvertToType(t ref.Type) ref.Val {
	if t == celtypes.TypeType {
		return o.st.Type
	}
	return celtypes.NewErr("type conversion error from '%s' to '%s'", o.st.TypeName(), t.TypeName())
}

func (o *object) Equal(other ref.Val) ref.Val {
	x, ok := other.(*object)
	return celtypes.Bool(ok && x.st == o.st &&
		(x.pointer == o.pointer || equality.Semantic.DeepEqual(x.pointer, o.pointer)))
}

func (o *object) Type() ref.Type { return o.st.Type }

func (o *object) Value() any { return o.pointer }

// Get reads a field by its name, if its type was not known at compile time.
func (o *object) Get(name ref.Val) ref.Val {
	f, err := o.field(name)
	if err != nil {
		return err
	}
	v, got := f.GetFrom(o.pointer)
	if got != nil {
		return celtypes.WrapErr(got)
	}
	return o.structs.NativeToValue(v)
}

// IsSet implements has().
func (o *object) IsSet(name ref.Val) ref.Val {
	f, err := o.field(name)
	if err != nil {
		return err
	}
	return celtypes.Bool(f.IsSet(o.pointer))
}

func (o *object) field(name ref.Val) (*celtypes.FieldType, ref.Val) {
	if s, ok := name.(celtypes.String); ok {
		if f, ok := o.st.fields[string(s)]; ok {
			return f, nil
		}
	}
	return nil, celtypes.NewErr("no such key: %v", name.Value())
}
