// SPDX-License-Identifier: Apache-2.0

package translate

import "strings"

// Expand replaces $(NAME) by the result of get. Unknown names stay unchanged. $$ is an escaped dollar sign, so that
// $$(NAME) becomes the text $(NAME). (API doc of Container.command.)
func Expand(s string, get func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		rest := s[i+1:]
		switch rest[0] {
		case '$':
			out.WriteByte('$')
			s = rest[1:]
		case '(':
			end := strings.IndexByte(rest, ')')
			if end < 0 {
				out.WriteString("$(")
				s = rest[1:]
				continue
			}
			name := rest[1:end]
			if v, ok := get(name); ok {
				out.WriteString(v)
			} else {
				out.WriteString("$(" + name + ")")
			}
			s = rest[end+1:]
		default:
			out.WriteByte('$')
			out.WriteByte(rest[0])
			s = rest[1:]
		}
	}
}
