// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/html"

	"keelson/apiserver/pipeline"
)

// maxToken limits the memory per token of a page. After a longer token the rest of the page is passed on unchanged.
const maxToken = 1 << 20

// linkAttributes are the HTML attributes with one URL, by tag (the attribute indexes of HTML 4.01 and HTML 5).
var linkAttributes = map[string][]string{
	"a":          {"href"},
	"applet":     {"codebase"},
	"area":       {"href"},
	"audio":      {"src"},
	"base":       {"href"},
	"blockquote": {"cite"},
	"body":       {"background"},
	"button":     {"formaction"},
	"command":    {"icon"},
	"del":        {"cite"},
	"embed":      {"src"},
	"form":       {"action"},
	"frame":      {"longdesc", "src"},
	"head":       {"profile"},
	"html":       {"manifest"},
	"iframe":     {"longdesc", "src"},
	"img":        {"longdesc", "src", "usemap"},
	"input":      {"src", "usemap", "formaction"},
	"ins":        {"cite"},
	"link":       {"href"},
	"object":     {"classid", "codebase", "data", "usemap"},
	"q":          {"cite"},
	"script":     {"src"},
	"source":     {"src"},
	"video":      {"poster", "src"},
}

// linkRewriter rewrites a backend's paths to paths below the proxy subresource.
type linkRewriter struct {
	prefix      string // path of the proxy: /api/v1/namespaces/NS/pods/NAME/proxy
	backend     string // host and port of the backend
	requestHost string // host and port in the client's request
}

// proxyWithRewrite proxies to target and rewrites redirects and links of pages, as Kubernetes' proxy does. Relative
// links need a slash after "proxy", so a request without it is redirected.
func proxyWithRewrite(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, target *url.URL, via http.RoundTripper,
) {
	if rq.Rest == "" && !strings.HasSuffix(r.URL.Path, "/") && r.Header.Get("Upgrade") == "" &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead) {
		to := url.URL{Path: r.URL.Path + "/", RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", to.String())
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	l := linkRewriter{
		prefix:      strings.TrimSuffix(strings.TrimSuffix(r.URL.Path, rq.Rest), "/"),
		backend:     target.Host,
		requestHost: r.Host,
	}
	p := reverseProxy(target, via)
	rewrite := p.Rewrite
	p.Rewrite = func(pr *httputil.ProxyRequest) {
		rewrite(pr)
		pr.Out.Header.Set("X-Forwarded-Uri", r.URL.EscapedPath())
	}
	p.ModifyResponse = l.response
	p.ServeHTTP(w, r)
}

func (l linkRewriter) response(resp *http.Response) error {
	if to := resp.Header.Get("Location"); to != "" {
		resp.Header.Set("Location", l.rewrite(to))
		return nil
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "text/html" || resp.Request.Method == http.MethodHead ||
		resp.StatusCode == http.StatusSwitchingProtocols ||
		resp.StatusCode == http.StatusPartialContent {
		return nil //nolint:nilerr // only HTML is rewritten
	}
	text := io.Reader(resp.Body)
	switch resp.Header.Get("Content-Encoding") {
	case "":
	case "gzip":
		if text, err = gzip.NewReader(resp.Body); err != nil {
			return fmt.Errorf("read the backend's gzip: %w", err)
		}
		resp.Header.Del("Content-Encoding")
	default:
		return nil // not decodable: leave it unchanged
	}
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = newHTMLRewriter(text, resp.Body, l.rewrite)
	return nil
}

// rewrite rewrites a URL of the backend: absolute paths get the prefix, others stay.
func (l linkRewriter) rewrite(to string) string {
	target, err := url.Parse(to)
	if err != nil || !strings.HasPrefix(target.Path, "/") || target.Host != "" &&
		target.Host != l.backend && target.Host != l.requestHost {
		return to
	}
	if target.Host != l.requestHost {
		target.Scheme = ""
		target.Host = ""
	}
	if target.Path == l.prefix || strings.HasPrefix(target.Path, l.prefix+"/") {
		return target.String()
	}
	slash := strings.HasSuffix(target.Path, "/")
	target.Path = path.Join(l.prefix, target.Path)
	target.RawPath = ""
	if slash {
		target.Path += "/"
	}
	return target.String()
}

// htmlRewriter is a page of HTML whose links are rewritten while it is read.
type htmlRewriter struct {
	in        io.Reader
	body      io.Closer
	link      func(string) string
	tokenizer *html.Tokenizer
	out       bytes.Buffer
	plain     io.Reader // the rest, passed on unchanged
	err       error
}

func newHTMLRewriter(in io.Reader, body io.Closer, link func(string) string) *htmlRewriter {
	p := &htmlRewriter{
		in:        in,
		body:      body,
		link:      link,
		tokenizer: html.NewTokenizer(in),
	}
	p.tokenizer.SetMaxBuf(maxToken)
	return p
}

func (p *htmlRewriter) Close() error { return p.body.Close() }

func (p *htmlRewriter) Read(b []byte) (int, error) {
	for p.out.Len() == 0 {
		switch {
		case p.plain != nil:
			return p.plain.Read(b)
		case p.err != nil:
			return 0, p.err
		}
		p.nextToken()
	}
	return p.out.Read(b)
}

// nextToken appends one token to out.
func (p *htmlRewriter) nextToken() {
	kind := p.tokenizer.Next()
	raw := slices.Clone(p.tokenizer.Raw()) // parsing the attributes modifies it
	switch kind {
	case html.ErrorToken:
		p.err = p.tokenizer.Err()
		p.out.Write(raw)
		if errors.Is(p.err, html.ErrBufferExceeded) {
			p.plain = io.MultiReader(bytes.NewReader(slices.Clone(p.tokenizer.Buffered())), p.in)
		}
	case html.StartTagToken, html.SelfClosingTagToken:
		token := p.tokenizer.Token()
		changed := false
		for i, a := range token.Attr {
			if !slices.Contains(linkAttributes[token.Data], a.Key) {
				continue
			}
			to := p.link(a.Val)
			changed = changed || to != a.Val
			token.Attr[i].Val = to
		}
		if changed {
			p.out.WriteString(token.String())
		} else {
			p.out.Write(raw)
		}
	default:
		p.out.Write(raw)
	}
}
