package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// outboundTo is a client for which these ranges are admitted.
func outboundTo(t testing.TB, allow ...string) *outbound {
	t.Helper()
	ranges, err := parsePrefixes("outbound-allow", allow)
	must(t, err)
	o := newOutbound(ranges)
	t.Cleanup(o.close)
	return o
}

const loopbackRange = "127.0.0.0/8"

// get calls a URL, and returns the answer and the reason why there is none.
func (o *outbound) get(ctx context.Context, target string) (*outboundAnswer, string, error) {
	answer, err := o.do(ctx, outboundRequest{method: "GET", url: target})
	var failed *outboundError
	if err != nil && !errors.As(err, &failed) {
		return answer, "an error of another type", err
	}
	if err != nil {
		return answer, failed.reason, err
	}
	return answer, "", nil
}

func TestOutbound_judgesEveryAddressByItsRange(t *testing.T) {
	t.Parallel()
	o := newOutbound(nil)
	for _, c := range []struct {
		want  addressClass
		texts string
	}{
		{publicAddress, `1.1.1.1 8.8.8.8 93.184.215.14 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
			128.0.0.1 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.1 172.15.255.255 172.32.0.1
			192.0.1.1 192.0.3.1 192.88.98.1 192.88.100.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1
			198.51.99.1 198.51.101.1 203.0.112.1 203.0.114.1 223.255.255.255 ::ffff:1.1.1.1 2001:200::1
			2001:4860:4860::8888 2001:db7::1 2001:db9::1 2003::1 2606:4700::1111 2a00:1450:4001::1
			3fff:1000::1 3ffe::1`},
		{refusedAddress, `0.0.0.0 0.1.2.3 10.0.0.0 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 127.0.0.1
			127.255.255.255 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255
			192.0.0.1 192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 192.168.255.255
			192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.255 224.0.0.1 239.255.255.255
			240.0.0.1 255.255.255.254 255.255.255.255 :: ::1 ::7f00:1 ::127.0.0.1 ::101:101 ::ffff:127.0.0.1
			::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:1.1.1.1 64:ff9b::7f00:1 64:ff9b::101:101
			64:ff9b:1::1 100::1 100:0:0:1::1 200::1 1fff:ffff::1 2001::1 2001:0:101:101::1 2001:2::1
			2001:10::1 2001:20::1 2001:30::1 2001:1ff:ffff::1 2001:db8::1 2001:db8:ffff:ffff::1 2002:7f00:1::1
			2002:101:101::1 2620:4f:8000::1 3fff::1 3fff:fff:ffff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254
			fd20:ce::254 fdff:ffff::1 fe80::1 febf::1 fec0::1 feff::1 ff02::1 ff0e::1 fe80::1%eth0
			2606:4700::1111%eth0`},
	} {
		for _, text := range strings.Fields(c.texts) {
			ip := netip.MustParseAddr(text)
			if got := o.classOf(netip.AddrPortFrom(ip, 443), true); got != c.want {
				t.Errorf("%s: %d, want %d", text, got, c.want)
			}
			for port, secure := range map[uint16]bool{443: false, 80: false, 8443: true, 22: true, 0: true} {
				if o.classOf(netip.AddrPortFrom(ip, port), secure) != refusedAddress {
					t.Errorf("%s may be called on port %d, with TLS: %v", text, port, secure)
				}
			}
		}
	}
	if o.classOf(netip.AddrPort{}, true) != refusedAddress {
		t.Error("no address is one that may be called")
	}
}

func TestOutbound_operatorAdmitsARangeOnAnyPortAndWithoutTLS(t *testing.T) {
	t.Parallel()
	o := outboundTo(t, loopbackRange, "10.1.2.3", "fd00::/8", "1.1.1.0/24")
	for _, c := range []struct {
		address string
		secure  bool
		want    addressClass
	}{
		{"127.0.0.1:9090", false, admittedAddress}, {"127.9.9.9:443", true, admittedAddress},
		{"[::ffff:127.0.0.1]:80", false, admittedAddress},
		{"10.1.2.3:1", false, admittedAddress}, {"10.1.2.4:443", true, refusedAddress},
		{"[fd00:ec2::254]:80", false, admittedAddress},
		{"[fc00::1]:443", true, refusedAddress}, {"[::1]:443", true, refusedAddress},
		{"1.1.1.1:443", true, publicAddress}, {"1.1.1.1:8443", true, admittedAddress},
		{"1.1.1.1:80", false, admittedAddress},
		{"8.8.8.8:443", true, publicAddress}, {"8.8.8.8:443", false, refusedAddress},
		{"8.8.8.8:80", false, refusedAddress}, {"8.8.8.8:8443", true, refusedAddress},
	} {
		if got := o.classOf(netip.MustParseAddrPort(c.address), c.secure); got != c.want {
			t.Errorf("%s, with TLS: %v: %d, want %d", c.address, c.secure, got, c.want)
		}
	}
}

func TestOutboundURL_hasANormalForm(t *testing.T) {
	t.Parallel()
	strict, admits := outboundTo(t), outboundTo(t, loopbackRange, "fd00::/8")
	label := strings.Repeat("a", 63)
	longHost := label + "." + label + "." + label + "." + strings.Repeat("a", 57) + ".com" // 253
	long := "https://example.com/" + strings.Repeat("a", 2048-len("https://example.com/"))
	for _, c := range []struct {
		o           *outbound
		raw, normal string
	}{
		{strict, "https://example.com", "https://example.com/"},
		{strict, "https://example.com/", "https://example.com/"},
		{strict, "HTTPS://Hooks.EXAMPLE.com:443/In/?A=b&c[]=%2f", "https://hooks.example.com/In/?A=b&c[]=%2f"},
		{strict, "https://example.com?a=1", "https://example.com/?a=1"},
		{strict, "https://example.com?", "https://example.com/?"},
		{strict, "https://example.com//a/../b/./c;d=e,f", "https://example.com//a/../b/./c;d=e,f"},
		{strict, "https://example.com/%C3%A4%0d%0a?x=@:/?", "https://example.com/%C3%A4%0d%0a?x=@:/?"},
		{strict, "https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"},
		{strict, "https://_hooks.example.com/", "https://_hooks.example.com/"},
		{strict, "https://1.2.3.4.example/", "https://1.2.3.4.example/"},
		{strict, "https://0x7f.1.xyz/", "https://0x7f.1.xyz/"},
		{strict, "https://127.0.0.1.nip.io/", "https://127.0.0.1.nip.io/"}, // the look-up decides
		{strict, "https://" + longHost + "/", "https://" + longHost + "/"},
		{strict, long, long},
		{admits, "https://example.com:443/", "https://example.com/"},
		{admits, "https://example.com:80/", "https://example.com:80/"},
		{admits, "http://hooks.inner.example:80/", "http://hooks.inner.example/"},
		{admits, "http://hooks.inner.example:443/", "http://hooks.inner.example:443/"},
		{admits, "HTTP://127.0.0.1:9090", "http://127.0.0.1:9090/"},
		{admits, "https://127.1.2.3/", "https://127.1.2.3/"},
		{admits, "http://[FD00::1]:65535/a", "http://[fd00::1]:65535/a"},
		{admits, "http://[fd00::1]/a", "http://[fd00::1]/a"},
	} {
		normal, code, detail := c.o.checkURL(c.raw)
		if normal != c.normal || code != "" || detail != "" {
			t.Errorf("%.100s: %q %s %s, want %q", c.raw, normal, code, detail, c.normal)
		}
		if again, _, _ := c.o.checkURL(normal); again != normal {
			t.Errorf("the normal form of %q is %q", normal, again)
		}
	}
}

// Against a tenant with the address of a webhook who would have the service call the machine itself, an inner
// network or a cloud's metadata: by an address in any notation, by a name, by one whose look-up changes, by a
// redirect: no addresses in place of names; the address is checked when it is dialled; redirects are not followed.
func TestOutboundURL_thatMayNotBeCalledIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	for code, urls := range map[string][]string{
		"empty": {""},
		"too_long": {"https://example.com/" + strings.Repeat("a", 2029),
			"https://a.example/?" + strings.Repeat("a", 2030)},
		"control_character": {"https://example.com/\n", "https://exa\tmple.com/", "https://example.com/\x00",
			"\x7fhttps://example.com/", "https://example.com/\u0085"},
		"invalid_utf8": {"https://example.com/\xff"},
		"scheme_not_allowed": append(strings.Fields(`ftp://example.com/ file:///etc/passwd gopher://example.com/
			javascript:alert(1) data:,x example.com //example.com/ https:example.com https:/example.com
			httpss://example.com/ unix:///run/x ://`),
			" https://example.com/"),
		"userinfo_not_allowed": append(strings.Fields(`https://user@example.com/ https://user:pass@example.com/
			https://@example.com/ https://example.com@127.0.0.1/ https://example.com:443@127.0.0.1/
			https://a%40b@example.com/`),
			"https://example.com\\@evil.example/"),
		"fragment_not_allowed": strings.Fields(`https://example.com/# https://example.com#x
			https://example.com/?a#b https://user@example.com/#a https://#`),
		"invalid_url": append(strings.Fields(`https://example.com/ä https://example.com/<>
			https://example.com/{id} https://example.com/% https://example.com/%4 https://example.com/%zz
			https://example.com/?a=%g0 https://example.com/a|b https://example.com/^ https://example.com:/
			https://example.com:0/ https://example.com:0443/ https://example.com:65536/ https://example.com:x/
			https://example.com:+443/ https://example.com:-1/ https://[::1]:x/ https://[::1]x:443x/`),
			"https://example.com/a b", "https://example.com/a\\b", "https://example.com/\"",
			"https://example.com/\x60"),
		"port_not_allowed": {"https://example.com:80/", "https://example.com:8443/", "https://example.com:22/",
			"https://example.com:65535"},
		"ip_address_not_allowed": strings.Fields(`https://127.0.0.1/ https://1.1.1.1/ https://2130706433/
			https://0x7f000001/ https://0X7F.1/ https://0x/ https://0177.0.0.1/ https://127.1/ https://127.0.1/
			https://0/ https://1/ https://example.1/ https://a.0x7f/ https://a.0xzz/ https://999.999.999.999/
			https://1.2.3.4.5/ https://4294967296/ https://169.254.169.254/latest/meta-data/ https://[::1]/
			https://[::]/ https://[::ffff:127.0.0.1]/ https://[::ffff:7f00:1]/ https://[fd00:ec2::254]/
			https://[fe80::1%25eth0]/ https://[fe80::1%eth0]/ https://[2606:4700::1111]/ https://[127.0.0.1]/
			https://[::1 https://[ https://[]/ https://[x]/ https://[::1]x/ https://[v1.x]/
			https://00000000177.1/`),
		"invalid_host": append(strings.Fields(`https:// https:/// https://?a https://. https://./
			https://example.com./ https://127.0.0.1./ https://127.0.0.1. https://.example.com/
			https://example..com/ https://localhost/ https://LOCALHOST/ https://a.localhost/ https://hooks/
			https://-a.example/ https://a-.example/ https://a.-b/ https://exam%70le.com/
			https://%31%32%37.0.0.1.com/ https://a,b.example/ https://*.example.com/ https://a:b:443/
			https://::1/ https://exa!mple.com/ https://１２７.０.０.１/ https://127。0。0。1/ https://127．0．0．1/
			https://①②⑦.example/ https://ｌｏｃａｌｈｏｓｔ.example/ https://a⁄b.example/`),
			"https://exa mple.com/", "https://example.com\\.evil.example/", "https://a b.example/",
			"https://exam\u00adple.com/", "https://exam\u200bple.com/", "https://e\u0301.example/",
			"https://a\u3002example/", "https://a\uff0eexample/", "https://"+label+"a.example/",
			"https://"+strings.Repeat("a", 300)+"/", "https://café.example/x",
			"https://BÜCHER.example", "https://İstanbul.example/", "https://boo\u212a.example/",
			"https://"+label+"."+label+"."+label+"."+strings.Repeat("a", 58)+".com/",
			"https://"+strings.Repeat("a.", 150)+"com/"),
	} {
		for _, raw := range urls {
			normal, got, detail := outboundTo(t).checkURL(raw)
			foreign := code == "invalid_host" && matches(`[^\x00-\x7f]`, raw)
			if normal != "" || got != code || !strings.HasSuffix(detail, ".") ||
				foreign && !strings.Contains(detail, "give it as a browser sends it (location.origin)") {
				t.Errorf("%.100q: %q %s %q, want %s", raw, normal, got, detail, code)
			}
		}
	}
	if _, code, _ := outboundTo(t).checkURL("http://example.com/"); code != "scheme_not_allowed" {
		t.Errorf("http: %q", code)
	}
	admits := outboundTo(t, loopbackRange, "fd00::/8")
	for _, raw := range strings.Fields(`
		http://10.0.0.1/ https://1.1.1.1/ http://2130706433/ http://127.1/ http://0x7f.0.0.1/
		http://0177.0.0.1/ http://127.0.0.01/ http://[::ffff:127.0.0.1]/ http://[127.0.0.1]/ http://[::1]/
		http://[fd00:0::1]/ http://[fd00::1%25eth0]/ http://[fd00::1%eth0]/ http://127.0.0.1./
		http://localhost/ http://u@127.0.0.1/ http://127.0.0.1/# ftp://127.0.0.1/ http://127.0.0.1:0/
		http://１２７.0.0.1/`) {
		if normal, code, detail := admits.checkURL(raw); code == "" || normal != "" || detail == "" {
			t.Errorf("%s is admitted as %q", raw, normal)
		}
	}
}

func FuzzOutboundURL(f *testing.F) {
	for _, s := range []string{"https://example.com", "HTTPS://Hooks.EXAMPLE.com:443/In/?A=b",
		"http://127.0.0.1:9090/", "http://[fd00::1]:80/", "https://user:p@example.com/",
		"https://[::ffff:7f00:1]/", "https://0x7f.1/", "https://１２７.0.0.1/", "https://bücher.example/%zz",
		"https://a.example\\@b.example", "https://x.localhost/#", "https://K.example/?["} {
		f.Add(s)
	}
	strict := newOutbound(nil)
	admits := newOutbound([]netip.Prefix{netip.MustParsePrefix(loopbackRange), netip.MustParsePrefix("fd00::/8")})
	f.Fuzz(func(t *testing.T, raw string) {
		for _, o := range []*outbound{strict, admits} {
			normal, code, detail := o.checkURL(raw)
			if (normal == "") != (code != "") || (code == "") != (detail == "") {
				t.Fatalf("%q: %q, %q, %q", raw, normal, code, detail)
			}
			if normal == "" {
				continue
			}
			if again, code, _ := o.checkURL(normal); again != normal {
				t.Errorf("the normal form %q has the normal form %q %s", normal, again, code)
			}
			u, err := url.Parse(normal)
			if err != nil || u.User != nil || u.Fragment != "" || u.Opaque != "" ||
				strings.ContainsAny(normal, "#\\ \r\n\t") || len(normal) > 2048 ||
				strings.IndexFunc(normal, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 || u.Path[0] != '/' {
				t.Fatalf("%q: %q, %+v, %v", raw, normal, u, err)
			}
			host := u.Hostname()
			ip, err := netip.ParseAddr(host)
			last := host[strings.LastIndexByte(host, '.')+1:]
			switch {
			case err == nil && (o == strict || !o.admits(ip) || ip.Zone() != "" || ip.Is4In6()):
				t.Errorf("%q: %q has an address", raw, normal)
			case err != nil && (last == host || last == "localhost" || last[0] >= '0' && last[0] <= '9' &&
				strings.Trim(last, "0123456789abcdefx") == "" && isNumber(last)):
				t.Errorf("%q: %q is no full name", raw, normal)
			case o == strict && (u.Scheme != "https" || u.Port() != ""), u.Scheme != "https" && u.Scheme != "http":
				t.Errorf("%q: %q has another scheme or port", raw, normal)
			}
		}
	})
}

// A nameServer is a DNS server in memory. It answers each look-up of a name with what answer
// returns for how many times the name was looked up before; nil is a name that does not exist.
type nameServer struct {
	answer func(name string, before int) []netip.Addr
	mu     sync.Mutex
	asked  map[string]int // look-ups of IPv4 addresses by name, as asked
}

// resolverOf starts a nameServer.
func resolverOf(_ testing.TB, answer func(name string, before int) []netip.Addr) (*net.Resolver, *nameServer) {
	s := &nameServer{answer: answer, asked: map[string]int{}}
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go s.serve(there)
		return here, nil
	}}, s
}

// serve answers one question, with its length before it (RFC 1035, section 4.2.2).
func (s *nameServer) serve(conn net.Conn) error {
	defer conn.Close()
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	question := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, question); err != nil {
		return err
	}
	name, i := "", 12
	for question[i] != 0 {
		name += string(question[i+1:i+1+int(question[i])]) + "."
		i += 1 + int(question[i])
	}
	const a, aaaa = 1, 28
	kind := binary.BigEndian.Uint16(question[i+1:])
	found, count := s.addresses(name, kind == a), uint16(0)
	reply := slices.Clone(question[:i+5])
	copy(reply[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // an answer to one question
	if found == nil {
		reply[3] |= 3 // the name does not exist
	}
	for _, ip := range found {
		if ip.Is4() && kind == a || ip.Is6() && kind == aaaa {
			count++
			reply = append(reply, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(ip.BitLen()/8))
			reply = append(reply, ip.AsSlice()...)
		}
	}
	binary.BigEndian.PutUint16(reply[6:], count)
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	return err
}

func (s *nameServer) addresses(name string, counts bool) []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.answer(name, s.asked[name])
	if counts {
		s.asked[name]++
	}
	return found
}

// lookups is how often a name was looked up.
func (s *nameServer) lookups(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// Against a tenant with the address of a webhook who would learn which names an inner network has: the same answer
// for a name without an address and for one with an inner address.
func TestOutboundHost_hasOneAnswerForNoAddressAndForOneThatMayNotBeCalled(t *testing.T) {
	t.Parallel()
	names := map[string][]netip.Addr{
		"public.example.":  addresses("93.184.215.14", "2606:4700::1111"),
		"private.example.": addresses("10.0.0.1"),
		"mixed.example.":   addresses("93.184.215.14", "10.0.0.1"),
		"mixed6.example.":  addresses("93.184.215.14", "fd00:ec2::254"),
		"mapped.example.":  addresses("::ffff:127.0.0.1"),
		"local.example.":   addresses("127.0.0.1"),
		"empty.example.":   {},
	}
	resolver, _ := resolverOf(t, func(name string, _ int) []netip.Addr { return names[name] })
	strict, admits := outboundTo(t), outboundTo(t, loopbackRange)
	strict.resolver, admits.resolver = resolver, resolver
	for _, c := range []struct {
		o    *outbound
		url  string
		pass bool
	}{
		{strict, "https://public.example/", true}, {strict, "https://private.example/", false},
		{strict, "https://mixed.example/", false},
		{strict, "https://mixed6.example/", false}, {strict, "https://mapped.example/", false},
		{strict, "https://local.example/", false},
		{strict, "https://empty.example/", false}, {strict, "https://none.example/", false},
		{admits, "https://public.example/", true}, {admits, "http://public.example/", false},
		{admits, "https://public.example:8443/", false},
		{admits, "http://local.example:9090/", true}, {admits, "https://local.example/", true},
		{admits, "http://127.0.0.1:9090/", true},
		{admits, "http://private.example/", false},
	} {
		code, detail := c.o.checkHost(t.Context(), c.url)
		want, says := "no_public_address", "This host has no public address on which the service may call it."
		if c.pass {
			want, says = "", ""
		}
		if code != want || detail != says {
			t.Errorf("%s: %q, %q", c.url, code, detail)
		}
	}
}

// A countingServer is an HTTP server on loopback that counts its requests.
func countingServer(t *testing.T, handler http.HandlerFunc) (base string, requests *atomic.Int64) {
	t.Helper()
	requests = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func portOf(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	must(t, err)
	return u.Port()
}

// The addresses of the name refuse connections but for the fourth or the fifth, behind which is a server that counts.
func TestFan_ofAddressesOfANameIsDialledFourAtMost(t *testing.T) {
	t.Parallel()
	const records = 3000
	for at, want := range map[int]struct {
		requests int64
		reason   string
	}{3: {1, ""}, 4: {0, "connection"}} {
		base, requests := countingServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
		many := make([]netip.Addr, records)
		for i := range many {
			many[i] = netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		}
		many[at] = netip.MustParseAddr("127.0.0.1")
		o := outboundTo(t, "127.0.0.0/8")
		resolver, server := resolverOf(t, func(string, int) []netip.Addr { return many })
		o.resolver = resolver
		_, reason, err := o.get(t.Context(), "http://many.example.com:"+portOf(t, base)+"/")
		if reason != want.reason || requests.Load() != want.requests ||
			server.lookups("many.example.com.") != 1 {
			t.Errorf("the address at %d: %d requests, %v", at, requests.Load(), err)
		}
	}
}

func TestOutbound_callsOnlyThoseAddressesOfAHostThatMayBeCalled(t *testing.T) {
	t.Parallel()
	base, requests := countingServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	names := map[string][]netip.Addr{
		"both.example.":   addresses("10.0.0.1", "127.0.0.1", "fe80::1"),
		"inner.example.":  addresses("10.0.0.1", "192.168.1.1"),
		"public.example.": addresses("93.184.215.14"),
	}
	o := outboundTo(t, loopbackRange)
	o.resolver, _ = resolverOf(t, func(name string, _ int) []netip.Addr { return names[name] })
	for host, want := range map[string]string{
		"both.example": "", "inner.example": "no_public_address", "none.example": "no_public_address",
		"public.example": "no_public_address", // http never leaves the ranges that are admitted
		"127.0.0.1":      "", "10.0.0.1": "address_refused", "127.1": "address_refused",
	} {
		answer, reason, err := o.get(t.Context(), "http://"+host+":"+portOf(t, base)+"/")
		var lookup *net.DNSError
		if errors.As(err, &lookup) != (host == "none.example") || lookup != nil && lookup.Name != "none.example." {
			t.Errorf("%s: looked up as %+v, which may be below a search domain", host, lookup)
		}
		if reason != want || want == "" && (answer.status != 204 || !answer.inner) {
			t.Errorf("%s: %+v, %v", host, answer, err)
		}
	}
	strict := outboundTo(t)
	for _, target := range []string{base, strings.Replace(base, "http:", "https:", 1), "https://127.0.0.1/"} {
		if _, reason, err := strict.get(t.Context(), target); reason != "address_refused" {
			t.Errorf("%s: %v", target, err)
		}
	}
	if requests.Load() != 2 {
		t.Errorf("%d requests", requests.Load())
	}
}

func TestOutbound_sendsWhatItIsGivenAndFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	connections := map[string]bool{}
	base, _ := countingServer(t, func(w http.ResponseWriter, r *http.Request) {
		got, connections[r.RemoteAddr] = r, true
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(503)
		io.WriteString(w, "later")
	})
	o := outboundTo(t, loopbackRange)
	header := http.Header{"Webhook-Id": {"evt_1"}, "Content-Type": {"application/json"}}
	q := outboundRequest{method: "POST", url: base + "/in%2Fbox?a=b%20c", header: header,
		body: []byte(`{"type":"lead.created"}`)}
	for range 3 {
		answer, err := o.do(t.Context(), q)
		if err != nil || answer.status != 503 || answer.header.Get("Retry-After") != "7" ||
			string(answer.body) != "later" || !answer.inner {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	if got.Method != "POST" || got.RequestURI != "/in%2Fbox?a=b%20c" || "http://"+got.Host != base ||
		string(body) != `{"type":"lead.created"}` ||
		got.ContentLength != int64(len(body)) || got.Proto != "HTTP/1.1" {
		t.Errorf("%+v, %s", got, body)
	}
	want := http.Header{"Webhook-Id": {"evt_1"}, "Content-Type": {"application/json"}, "Content-Length": {"23"},
		"Accept-Encoding": {"identity"}, "User-Agent": {"widgetd/" + buildName()}}
	if fmt.Sprint(got.Header) != fmt.Sprint(want) {
		t.Errorf("header %v, want %v", got.Header, want)
	}
	if len(header) != 2 {
		t.Errorf("the caller's header was changed: %v", header)
	}
	if len(connections) != 1 {
		t.Errorf("three requests took %d connections", len(connections))
	}
	q.header = http.Header{"User-Agent": {"other/1"}}
	if _, err := o.do(t.Context(), q); err != nil || got.UserAgent() != "other/1" {
		t.Errorf("User-Agent %q, %v", got.UserAgent(), err)
	}
	if o.plain.Proxy != nil || o.secure.Proxy != nil {
		t.Error("a proxy of the environment could be used")
	}

	inner, reached := countingServer(t, func(http.ResponseWriter, *http.Request) {})
	away, _ := countingServer(t, http.RedirectHandler(inner, http.StatusTemporaryRedirect).ServeHTTP)
	answer, _, err := o.get(t.Context(), away)
	must(t, err)
	failIf(t, answer.status != http.StatusTemporaryRedirect || answer.header.Get("Location") != inner ||
		reached.Load() != 0, "a redirect is followed: %+v", answer)
}

func TestOutbound_readsNoMoreThan64KiBAndUnpacksNothing(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	zip.Write(make([]byte, 10<<20))
	zip.Close()
	var sent atomic.Int64
	ended := make(chan struct{}, 1)
	base, _ := countingServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/most":
			w.Write(make([]byte, 64<<10))
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(packed.Bytes())
		case "/5GB":
			defer func() { ended <- struct{}{} }()
			w.Header().Set("Content-Length", "5000000000")
			part := make([]byte, 32<<10)
			for range 5_000_000_000 / len(part) {
				n, err := w.Write(part)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}
	})
	o := outboundTo(t, loopbackRange)
	if answer, _, err := o.get(t.Context(), base+"/most"); err != nil || len(answer.body) != 64<<10 {
		t.Errorf("64 KiB: %v", err)
	}
	if answer, _, err := o.get(t.Context(), base+"/gzip"); err != nil || !bytes.Equal(answer.body, packed.Bytes()) {
		t.Errorf("gzip: %v", err)
	}
	answer, reason, err := o.get(t.Context(), base+"/5GB")
	if reason != "answer_too_large" || answer == nil || answer.status != 200 || len(answer.body) != 64<<10 {
		t.Errorf("5 GB: %+v, %v", answer, err)
	}
	<-ended
	if sent.Load() > 100<<20 {
		t.Errorf("%d bytes were sent", sent.Load())
	}
}

// rawServer runs serve for each connection, and returns the server's address. Done gets a value when
// the client has closed a connection that serve has returned from.
func rawServer(t *testing.T, serve func(net.Conn)) (address string, done chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done = make(chan struct{}, 100)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn)
				io.Copy(io.Discard, conn) // until the client closes it
				done <- struct{}{}
			})
		}
	})
	t.Cleanup(func() { listener.Close(); running.Wait() })
	return listener.Addr().String(), done
}

// answers writes a text after the header of the request has come.
func answers(text string) func(net.Conn) {
	return func(conn net.Conn) {
		buf := make([]byte, 4096)
		conn.Read(buf)
		io.WriteString(conn, text)
	}
}

// answersAndCloses is answers, and then the connection is closed.
func answersAndCloses(text string) func(net.Conn) {
	return func(conn net.Conn) { answers(text)(conn); conn.Close() }
}

// endlessly writes a text after the header of the request has come, as often as the client takes it.
func endlessly(start, text string, pause time.Duration) func(net.Conn) {
	return func(conn net.Conn) {
		answers(start)(conn)
		for tick := time.NewTicker(max(pause, 1)); ; {
			if _, err := io.WriteString(conn, text); err != nil {
				return
			}
			if pause > 0 {
				<-tick.C
			}
		}
	}
}

// Against whoever receives a webhook who would hold the service up, or fill its memory, with an answer without an
// end: 15 seconds, 64 KiB of body, 32 KiB of header.
func TestOutbound_badServerHasAReasonAndItsConnectionIsClosed(t *testing.T) {
	t.Parallel()
	const (
		ok       = "HTTP/1.1 200 OK\r\n"
		chunked  = "Transfer-Encoding: chunked\r\n\r\n"
		upgrade  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
		settings = "\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00d\x00\x04\x00\xa0\x00\x00\r\n\r\n"
	)
	long := strings.Repeat("b", 1000)
	reset := func(conn net.Conn) {
		answers("")(conn)
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"hangs before the answer": {func(net.Conn) {}, "timeout"},
		"hangs in the body":       {answers(ok + "Content-Length: 10\r\n\r\nabc"), "timeout"},
		"a byte at a time": {endlessly(ok+"Content-Length: 1000\r\n\r\n", "x", 5*time.Millisecond),
			"timeout"},
		"a reset":                  {reset, "connection"},
		"closes without an answer": {answersAndCloses(""), "connection"},
		"closes in the body":       {answersAndCloses(ok + "Content-Length: 10\r\n\r\nabc"), "connection"},
		"another protocol":         {answers("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"), "malformed_answer"},
		"HTTP/2":                   {answers(settings), "malformed_answer"},
		"two lengths": {answers(ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
			"malformed_answer"},
		"a header line that is none": {answers(ok + "what is this\r\n\r\n"), "malformed_answer"},
		"the status 000":             {answers("HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n"), "malformed_answer"},
		"another protocol on top":    {answers(upgrade), "malformed_answer"},
		"one large header": {answers(ok + "X-A: " + strings.Repeat("a", 64<<10) + "\r\n\r\n"),
			"answer_too_large"},
		"endless headers": {endlessly(ok, "X-A: "+long+"\r\n", 0), "answer_too_large"},
		"endless early hints": {endlessly("", "HTTP/1.1 103 Early Hints\r\nX-A: "+long+"\r\n\r\n", 0),
			"answer_too_large"},
		"an endless body":            {endlessly(ok+chunked, "3e8\r\n"+long+"\r\n", 0), "answer_too_large"},
		"an endless body of no size": {endlessly(ok+"\r\n", long, 0), "answer_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, done := rawServer(t, c.serve)
			o := outboundTo(t, loopbackRange)
			if c.want == "timeout" {
				o.limit = time.Second // enough for the connection to be made, also on a machine that is busy
			}
			q := outboundRequest{method: "POST", url: "http://" + address + "/", body: []byte("{}")}
			answer, err := o.do(t.Context(), q)
			var failed *outboundError
			if !errors.As(err, &failed) || failed.reason != c.want ||
				(answer != nil) != matches(`body|chunk|a byte at`, name) {
				t.Errorf("%+v, %v, want %s", answer, err, c.want)
			}
			if failed != nil && failed.reason+": "+failed.err.Error() != err.Error() || errors.Unwrap(err) == nil {
				t.Errorf("the error says %q", err)
			}
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Error("the connection was not made, or not closed")
			}
		})
	}
}

// Against a connection that breaks once an entry is written, or a 429 or 401 after that, that would have a day
// booked twice: requests with an idempotency key are not repeated by the client; only a refusal of validation
// proves that nothing was written, and even then the entry is looked for before it is sent again.
func TestOutbound_aRequestWithAnIdempotencyKeyIsSentOnceWhateverBecomesOfItsConnection(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Method == "GET" {
			return
		}
		if written.Add(1) == 1 {
			panic(http.ErrAbortHandler) // it is written, and then the connection breaks
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	o := outboundTo(t, loopbackRange)
	for _, body := range []string{"an entry", ""} {
		for _, method := range []string{"PUT", "POST"} {
			written.Store(0)
			if _, reason, err := o.get(t.Context(), server.URL); err != nil { // its connection is kept
				t.Fatal(reason, err)
			}
			_, err := o.do(t.Context(), outboundRequest{method: method, url: server.URL, body: []byte(body),
				header: http.Header{"Idempotency-Key": {"key"}}})
			var failed *outboundError
			if !errors.As(err, &failed) || failed.reason != outboundNoConnect || written.Load() != 1 {
				t.Errorf("%s with %q: %v, sent %d times", method, body, err, written.Load())
			}
		}
	}
}

func TestOutbound_callsOverTLSOnlyWhoProvesItsName(t *testing.T) {
	t.Parallel()
	server := func(change func(*httptest.Server)) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			io.WriteString(w, r.Proto)
		}))
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		change(s)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	usual := server(func(s *httptest.Server) { s.EnableHTTP2 = true })
	old := server(func(s *httptest.Server) {
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	})
	plain, _ := countingServer(t, func(http.ResponseWriter, *http.Request) {})
	hasty, _ := rawServer(t, answersAndCloses(""))
	resolver, _ := resolverOf(t, func(string, int) []netip.Addr { return addresses("127.0.0.1") })
	client := func() *outbound {
		o := outboundTo(t, loopbackRange)
		o.resolver, o.tls.RootCAs = resolver, x509.NewCertPool()
		o.tls.RootCAs.AddCert(usual.Certificate())
		return o
	}
	for _, c := range []struct{ url, want string }{
		{"https://127.0.0.1:" + portOf(t, usual.URL), ""},
		{"https://example.com:" + portOf(t, usual.URL), ""},
		{"https://example.net:" + portOf(t, usual.URL), "tls"},
		{"https://example.com:" + portOf(t, old.URL), "tls"},
		{"https://example.com:" + portOf(t, plain), "tls"},
		{"https://" + hasty, "connection"},
	} {
		answer, reason, err := client().get(t.Context(), c.url)
		if reason != c.want || c.want == "" && (string(answer.body) != "HTTP/1.1" || !answer.inner) {
			t.Errorf("%s: %+v, %v, want %q", c.url, answer, err, c.want)
		}
	}
	unknown := client()
	unknown.tls.RootCAs = x509.NewCertPool()
	if _, reason, err := unknown.get(t.Context(), usual.URL); reason != "tls" {
		t.Errorf("a certificate of an unknown issuer: %v", err)
	}

	speaksHTTP, closed := rawServer(t, answers("HTTP/1.1 400 Bad Request\r\n\r\n"))
	if _, reason, err := client().get(t.Context(), "https://"+speaksHTTP); reason != "tls" {
		t.Errorf("HTTP in answer to a handshake: %v", err)
	}
	<-closed
	silent, gone := rawServer(t, func(net.Conn) {})
	hurried := client()
	hurried.limit = time.Second
	if _, reason, err := hurried.get(t.Context(), "https://"+silent); reason != "timeout" {
		t.Errorf("a handshake without an end: %v", err)
	}
	<-gone
}
