// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"strings"
)

// Expand replaces $(NAME) by the result of get. Unknown names stay unchanged. $$ is an escaped dollar sign, so that
// $$(NAME) becomes the text $(NAME). (API doc of Container.command.) A result of more than most bytes is an error,
// which comes before the bytes are made.
func Expand(s string, most int, get func(string) (string, bool)) (string, error) {
	b := bounded{limit: most}
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.write(s)
			return b.result()
		}
		b.write(s[:i])
		rest := s[i+1:]
		switch rest[0] {
		case '$':
			b.write("$")
			s = rest[1:]
		case '(':
			end := strings.IndexByte(rest, ')')
			if end < 0 {
				b.write("$(")
				s = rest[1:]
				continue
			}
			if v, ok := get(rest[1:end]); ok {
				b.write(v)
			} else {
				b.write("$" + rest[:end+1])
			}
			s = rest[end+1:]
		default:
			b.write("$" + rest[:1])
			s = rest[1:]
		}
		if b.over {
			return b.result()
		}
	}
}

// bounded collects text up to a limit of bytes.
type bounded struct {
	strings.Builder

	limit int
	over  bool
}

func (b *bounded) write(s string) {
	b.over = b.over || len(s) > b.limit-b.Len()
	if !b.over {
		b.WriteString(s)
	}
}

func (b *bounded) result() (string, error) {
	if b.over {
		return "", fmt.Errorf("it has more than %d bytes when its $(NAME)s are replaced", b.limit)
	}
	return b.String(), nil
}
