package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// An outbound is the one client for everything that this service calls. Callers of the API choose
// some of the addresses, so it must not give them access to networks that only this machine can
// reach: the address of every connection is checked after the look-up, right before it is made.
// It calls public unicast addresses on port 443 with https and nothing else, except in the ranges
// that an operator admits. It follows no redirect, uses no proxy, speaks HTTP/1.1 and asks for no
// compression. Make one with newOutbound.
type outbound struct {
	allow       []netip.Prefix // ranges that may be called with http too, on any port and by literal address
	limit       time.Duration  // for a request and its answer, the look-up and the body included
	lookupLimit time.Duration  // for the look-up of checkHost
	resolver    *net.Resolver
	tls         *tls.Config
	secure      *http.Transport // for https
	plain       *http.Transport // for http: its connections reach addresses in allow only

	reach reachability // whether calls fail alike

	blocked func() bool  // whether nothing may be called at the moment; nil: never
	flying  atomic.Int64 // calls that are under way
}

// The bounds of an outbound.
const (
	outboundLimit       = 15 * time.Second // contract, section 8
	outboundLookupLimit = 2 * time.Second
	outboundIdle        = 30 * time.Second // after which a connection that nobody uses is closed
	maxOutboundIdle     = 64               // such connections with TLS, and as many without
	maxOutboundDialled  = 4                // addresses of a host, of each family, that one request tries
	maxOutboundURL      = 2048             // characters
	maxOutboundBody     = 64 << 10         // bytes of an answer that are read, unless a request wants more
	maxOutboundHeader   = 32 << 10         // bytes
	maxHostName         = 253              // characters (RFC 1035, section 3.1, without the lengths)
	maxRetryAfter       = 24 * time.Hour
)

// newOutbound makes a client. allow are the ranges of -outbound-allow.
func newOutbound(allow []netip.Prefix) *outbound {
	o := &outbound{
		allow:       allow,
		limit:       outboundLimit,
		lookupLimit: outboundLookupLimit,
		resolver:    &net.Resolver{PreferGo: true}, // obeys its context; does not read 0x7f.1 as an address
		tls:         &tls.Config{MinVersion: tls.VersionTLS12},
	}
	transport := http.Transport{
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		DisableCompression:     true,
		MaxIdleConns:           maxOutboundIdle,
		MaxIdleConnsPerHost:    maxOutboundIdle,
		IdleConnTimeout:        outboundIdle,
		MaxResponseHeaderBytes: maxOutboundHeader,
	}
	o.plain, o.secure = transport.Clone(), transport.Clone()
	o.plain.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		return o.dial(requestContext(ctx), address, false)
	}
	o.secure.DialTLSContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		return o.dialTLS(requestContext(ctx), address)
	}
	return o
}

// close closes the connections that are kept for the next request.
func (o *outbound) close() {
	o.plain.CloseIdleConnections()
	o.secure.CloseIdleConnections()
}

// A requestKey is the key under which the context of a request carries itself as a value.
type requestKey struct{}

// requestContext returns the context of the request that a connection is made for. The context that
// http.Transport passes when it dials does not end with the request, but has its values.
func requestContext(dialing context.Context) context.Context {
	if request, ok := dialing.Value(requestKey{}).(context.Context); ok {
		return request
	}
	return dialing
}

// do sends one request and reads its answer, in at most outboundLimit altogether. Any status is an
// answer, a redirect too. Every error is an *outboundError. Beside one about the body, such as
// answer_too_large, the answer is returned, with the beginning of the body.
func (o *outbound) do(ctx context.Context, q outboundRequest) (*outboundAnswer, error) {
	normal, code, detail := o.checkURL(q.url)
	if code != "" {
		return nil, noAnswer(outboundRefused, errors.New(detail))
	}
	o.flying.Add(1) // before blocked is asked: whoever finds no call then knows that none begins
	defer o.flying.Add(-1)
	if o.blocked != nil && o.blocked() {
		return nil, noAnswer(outboundCanceled, errors.New("the peer may do it"))
	}
	limited, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	answer, err := o.exchange(limited, normal, q)
	if err == nil {
		o.reach.note(hostOf(normal), "")
		return answer, nil
	}
	var known *outboundError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		err = noAnswer(outboundCanceled, err)
	case limited.Err() != nil || isTimeout(err):
		err = noAnswer(outboundTimeout, err)
	case errors.As(err, &known):
		err = known
	case isConnectionFailure(err):
		err = noAnswer(outboundNoConnect, err)
	case strings.Contains(err.Error(), "response headers exceeded"): // net/http has no error value for it
		err = noAnswer(outboundTooLarge, err)
	default:
		err = noAnswer(outboundMalformed, err)
	}
	if fault, says := faultOfCall(err); says {
		o.reach.note(hostOf(normal), fault)
	}
	return answer, err
}

// exchange sends a request to a URL that checkURL has passed, and reads the answer.
func (o *outbound) exchange(ctx context.Context, target string, q outboundRequest) (*outboundAnswer, error) {
	secure := strings.HasPrefix(target, "https:")
	answer := &outboundAnswer{}
	ctx = context.WithValue(ctx, requestKey{}, ctx)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		answer.inner = o.classOf(remoteAddress(got.Conn), secure) == admittedAddress
	}})
	req, err := http.NewRequestWithContext(ctx, q.method, target, bytes.NewReader(q.body))
	if err != nil {
		return nil, noAnswer(outboundRefused, err)
	}
	if q.header != nil {
		req.Header = q.header.Clone()
	}
	req.Header.Set("User-Agent", cmp.Or(req.Header.Get("User-Agent"), "widgetd/"+buildName()))
	req.Header.Set("Accept-Encoding", "identity")
	if req.Header.Get("Idempotency-Key") != "" {
		// When a kept-alive connection breaks before the answer, http.Transport would send such a request again by
		// itself (net/http, Transport), so that the other side sees two, and the caller only the second answer. It
		// can't where a body has been read that nothing can make anew.
		req.Body, req.GetBody = io.NopCloser(bytes.NewReader(q.body)), nil
	}
	transport := o.plain
	if secure {
		transport = o.secure
	}
	// Unlike an http.Client, a transport follows no redirect and keeps no cookie.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, noAnswer(outboundMalformed, errors.New("it switches to another protocol"))
	}
	if resp.StatusCode < 100 { // net/http takes any three digits
		return nil, noAnswer(outboundMalformed, errors.New("its status is none of HTTP"))
	}
	answer.status, answer.header = resp.StatusCode, resp.Header
	largest := cmp.Or(q.largest, maxOutboundBody)
	answer.body, err = io.ReadAll(io.LimitReader(resp.Body, largest+1))
	if err != nil {
		return answer, err
	}
	if int64(len(answer.body)) > largest {
		answer.body = answer.body[:largest]
		err := noAnswer(outboundTooLarge, fmt.Errorf("the body has more than %d bytes", largest))
		err.status = answer.status
		return answer, err
	}
	return answer, nil
}

// isTimeout reports whether an error of the network is a timeout.
func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// isConnectionFailure reports whether a connection was broken by the other side or the network between.
func isConnectionFailure(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "server closed idle connection")
}

// dial connects to an address "host:port" that may be called. The host is looked up once, and of each family at most
// maxOutboundDialled of its addresses are tried. Errors: an *outboundError, or that of the network.
func (o *outbound) dial(ctx context.Context, address string, secure bool) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var tried, tried6 atomic.Int32 // both families are tried at once
	d := net.Dialer{
		Resolver: o.resolver,
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			found, err := netip.ParseAddrPort(address)
			family := &tried
			if network == "tcp6" {
				family = &tried6
			}
			if err != nil || o.classOf(found, secure) == refusedAddress || family.Add(1) > maxOutboundDialled {
				return errRefusedAddress
			}
			return nil
		},
	}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(absolute(host), port))
	var lookup *net.DNSError
	if errors.As(err, &lookup) && !lookup.IsTimeout {
		err = noAnswer(outboundNoAddress, err)
	}
	return conn, err
}

var errRefusedAddress = noAnswer(outboundNoAddress, errors.New("the host has an address that may not be called"))

// dialTLS is dial for https: it also shakes hands and verifies the certificate. http.Transport would
// do that in a goroutine that outlives the request.
func (o *outbound) dialTLS(ctx context.Context, address string) (net.Conn, error) {
	raw, err := o.dial(ctx, address, true)
	if err != nil {
		return nil, err
	}
	config := o.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		var op *net.OpError
		alert := errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") // an alert of TLS
		if isConnectionFailure(err) && !alert {
			return nil, err
		}
		return nil, noAnswer(outboundTLS, err)
	}
	return conn, nil
}

// absolute returns a host name with a dot at its end, so that it is not also looked up below the
// search domains of this machine's network. Addresses stay as they are.
func absolute(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	return host + "."
}

// remoteAddress returns the address at the other end of a connection.
func remoteAddress(conn net.Conn) netip.AddrPort {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return address.AddrPort()
	}
	return netip.AddrPort{}
}

// An addressClass says whether an address may be called.
type addressClass int

const (
	refusedAddress  addressClass = iota
	publicAddress                // anybody could call it
	admittedAddress              // only because an operator admits its range
)

// classOf says whether an address may be called, with https or without.
func (o *outbound) classOf(address netip.AddrPort, secure bool) addressClass {
	ip := address.Addr().Unmap()
	switch {
	case secure && address.Port() == 443 && isPublic(ip):
		return publicAddress
	case o.admits(ip):
		return admittedAddress
	}
	return refusedAddress
}

// admits reports whether an address is in a range that the operator admits.
func (o *outbound) admits(ip netip.Addr) bool {
	return slices.ContainsFunc(o.allow, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// notPublic are the ranges in which no host on the public internet has its address: those of the
// special-purpose address registries of IANA (RFC 6890, as of 2026) that are not globally reachable or
// serve no hosts (AS112, AMT), multicast, and an address at which a cloud answers its own machines. Of
// IPv6 only the ranges inside 2000::/3 are listed, since globalUnicast excludes all others.
var notPublic = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8",         // this network
		"10.0.0.0/8",        // private
		"100.64.0.0/10",     // shared by a carrier's NAT, and Alibaba's metadata
		"127.0.0.0/8",       // loopback
		"168.63.129.16/32",  // Azure's own services for a machine: public by its form only
		"169.254.0.0/16",    // link-local, and the metadata of most clouds
		"172.16.0.0/12",     // private
		"192.0.0.0/24",      // protocol assignments, and Oracle's metadata
		"192.0.2.0/24",      // documentation
		"192.88.99.0/24",    // relays of 6to4
		"192.168.0.0/16",    // private
		"198.18.0.0/15",     // benchmarks
		"198.51.100.0/24",   // documentation
		"203.0.113.0/24",    // documentation
		"224.0.0.0/4",       // multicast
		"240.0.0.0/4",       // reserved, and broadcast
		"2001::/23",         // protocol assignments: Teredo, benchmarks, ORCHID and others
		"2001:db8::/32",     // documentation
		"2002::/16",         // 6to4, which has an IPv4 address in it
		"3fff::/20",         // documentation
		"2620:4f:8000::/48", // AS112, where queries for private names end
		"192.31.196.0/24",   // AS112
		"192.52.193.0/24",   // multicast tunnels (AMT)
		"192.175.48.0/24",   // AS112
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

// globalUnicast are the addresses of IPv6 that are given to networks (RFC 4291, section 2.4). Outside
// are loopback, link-local, site-local, unique local, multicast, discard, NAT64, and the forms with
// an IPv4 address in them.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// isPublic reports whether an address is public unicast. An IPv4-mapped one must be unmapped before;
// an IPv6 address with a zone is in no range, so it is not public.
func isPublic(ip netip.Addr) bool {
	if !ip.IsValid() || ip.Is6() && !globalUnicast.Contains(ip) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// checkHost looks up the host of a URL that checkURL has returned, so that a URL that can't be called
// is refused when it is registered; the check that counts is made at each call. It returns the code and
// the detail of a fieldError, which are the same whether the host has no address, or any that may not be
// called, so that nobody learns which names exist in a network. It takes at most outboundLookupLimit.
func (o *outbound) checkHost(ctx context.Context, normal string) (code, detail string) {
	code, detail = outboundNoAddress, "This host has no public address on which the service may call it."
	u, err := url.Parse(normal)
	if err != nil {
		return code, detail
	}
	secure := u.Scheme == "https"
	port := uint16(80)
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		port = uint16(n)
	} else if secure {
		port = 443
	}
	ctx, cancel := context.WithTimeout(ctx, o.lookupLimit)
	defer cancel()
	found, err := o.resolver.LookupNetIP(ctx, "ip", absolute(u.Hostname()))
	if err != nil || len(found) == 0 {
		return code, detail
	}
	for _, ip := range found {
		if o.classOf(netip.AddrPortFrom(ip, port), secure) == refusedAddress {
			return code, detail
		}
	}
	return "", ""
}

// checkURL checks a URL that somebody wants to have called. It returns its normal form, with scheme
// and host in lower case, no default port and at least the path "/"; or the code
// and the detail of a fieldError. A URL in normal form is returned unchanged.
func (o *outbound) checkURL(raw string) (normal, code, detail string) {
	if code, detail = checkText(raw, required, maxOutboundURL); code != "" {
		return "", code, detail
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "https" && (scheme != "http" || len(o.allow) == 0) {
		return "", "scheme_not_allowed", "This must be a URL that begins with https://."
	}
	authority, tail := rest, "/"
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	switch {
	case strings.Contains(rest, "#"):
		return "", "fragment_not_allowed", "The URL must not have a fragment, which begins with #."
	case strings.Contains(authority, "@"):
		return "", "userinfo_not_allowed", "The URL must not have a user name or a password."
	case !isURLText(tail):
		return "", "invalid_url", "Other characters than those of a URL must be percent-encoded (RFC 3986)."
	case tail[0] == '?':
		tail = "/" + tail
	}
	host, port, ok := cutPort(authority)
	if !ok {
		return "", "invalid_url", "The port must be a number from 1 to 65535."
	}
	if host, code, detail = o.normalHost(host); code != "" {
		return "", code, detail
	}
	switch {
	case port == "" || scheme == "https" && port == "443" || scheme == "http" && port == "80":
		port = ""
	case len(o.allow) == 0:
		return "", "port_not_allowed", "Only port 443 is called."
	default:
		port = ":" + port
	}
	normal = scheme + "://" + host + port + tail
	if len(normal) > maxOutboundURL {
		return "", "too_long", fmt.Sprintf("This has more than %d characters in its normal form.", maxOutboundURL)
	}
	if u, err := url.Parse(normal); err != nil || u.Host != host+port || u.String() != normal {
		return "", "invalid_url", "This is not a URL."
	}
	return normal, "", ""
}

// normalHost checks the host of a URL and returns its normal form, or the code and the detail of a fieldError.
func (o *outbound) normalHost(host string) (normal, code, detail string) {
	if strings.HasPrefix(host, "[") {
		return o.literal(host)
	}
	if !isASCII(host) {
		return "", "invalid_host", "The host must be in ASCII: " + asBrowsersSend + "."
	}
	ascii := strings.ToLower(host)
	labels := strings.Split(ascii, ".")
	last := labels[len(labels)-1]
	switch {
	case ascii == "":
		return "", "invalid_host", "The URL has no host."
	case last == "":
		return "", "invalid_host", "The host must not end in a dot."
	case len(ascii) > maxHostName:
		return "", "invalid_host", fmt.Sprintf("The host has more than %d characters.", maxHostName)
	case isNumber(last):
		return o.literal(ascii)
	case !slices.ContainsFunc(labels, func(label string) bool { return !isHostLabel(label) }):
	default:
		return "", "invalid_host", fmt.Sprintf("The host is not a host name: labels of 1 to %d letters, "+
			"digits and hyphens, separated by dots.", maxHostLabel)
	}
	if len(labels) == 1 || last == "localhost" {
		return "", "invalid_host", "The host must be a full name with a domain, such as hooks.example.com."
	}
	return ascii, "", ""
}

// literal returns the normal form of a host that is an IP address, if it is in a range that the
// operator admits and written in its usual form.
func (o *outbound) literal(host string) (normal, code, detail string) {
	text := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip, err := netip.ParseAddr(text)
	normal = ip.String()
	if ip.Is6() {
		normal = "[" + normal + "]"
	}
	if err != nil || ip.Zone() != "" || normal != strings.ToLower(host) || !o.admits(ip) {
		return "", "ip_address_not_allowed", "The host must be a name, not an IP address."
	}
	return normal, "", ""
}
