package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// What comes of a call to an outside system: an answer, or an *outboundError with its outcome. All clients of payment
// providers and of books say what has happened by these outcomes; each only tells its vendor's own refusals from others
// (classify).

// An outboundRequest is one request to send.
type outboundRequest struct {
	method, url string
	header      http.Header // User-Agent is added where there is none
	body        []byte
	largest     int64 // bytes of the answer's body that are read; 0: maxOutboundBody
}

// bodyText returns v as JSON, for the body of a request.
func bodyText(v any) string { return strings.TrimSpace(string(encodeJSON(v))) }

// An outboundAnswer is what came back.
type outboundAnswer struct {
	status int
	header http.Header
	body   []byte // at most outboundRequest.largest bytes, as they were sent: compressed ones stay so
	inner  bool   // it came from an address that only -outbound-allow admits, so its body must not be shown
}

// ok reports whether the status is 2xx.
func (a *outboundAnswer) ok() bool { return a.status >= 200 && a.status < 300 }

// A vendorOutcome says what has become of a call that was not answered as it should be.
type vendorOutcome int

const (
	vendorUnknown   vendorOutcome = iota // no usable answer: whether the vendor has acted is not known
	vendorRefused                        // the vendor has not acted, and will not when the same is sent again
	vendorMissing                        // vendorRefused, since what the call is about does not exist there
	vendorOwnerGone                      // vendorRefused, until the owner of the connection connects it again
	vendorDenied                         // the vendor refuses the keys or the access token
	vendorBusy                           // the vendor asks to wait; with no status, the call was not made at all
	vendorStale                          // the key replays an earlier failure: look, and then use another key
)

// The reasons of an outboundError that has no answer, and of one that can't be read.
const (
	outboundTimeout   = "timeout"
	outboundNoAddress = "no_public_address" // the host has no address, or none that may be called
	outboundNoConnect = "connection"        // refused, reset or closed without an answer
	outboundTLS       = "tls"               // no TLS 1.2 or later, or a certificate that can't be verified
	outboundTooLarge  = "answer_too_large"
	outboundMalformed = "malformed_answer" // what came back is not HTTP/1.1, or not what was asked for
	outboundRefused   = "address_refused"  // checkURL refuses the URL
	outboundCanceled  = "canceled"         // the caller's context was canceled, or nothing may be called
)

// An outboundError says why a call was not answered as it should be.
type outboundError struct {
	outcome vendorOutcome
	status  int           // of the answer; 0: there was none
	reason  string        // one of the constants above, or a code of the vendor
	detail  string        // for people, from the vendor's own message; "": none
	ofOrder bool          // of a new attempt to pay: what is wrong is only in this order
	wait    time.Duration // how long the vendor asks to wait; 0: it does not say
	err     error         // why there is no answer; nil: there is one
}

func (e *outboundError) Error() string {
	if e.err != nil {
		return e.reason + ": " + e.err.Error()
	}
	text := e.reason
	if e.status != 0 {
		text = "the answer is " + e.reason
	}
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// Unwrap returns the error below.
func (e *outboundError) Unwrap() error { return e.err }

// final reports whether the vendor has not acted, and will not when the same is sent again.
func (e *outboundError) final() bool {
	return e.outcome == vendorRefused || e.outcome == vendorMissing || e.outcome == vendorOwnerGone
}

// noAnswer returns the error of a call that has no answer.
func noAnswer(reason string, err error) *outboundError {
	return &outboundError{reason: reason, err: err}
}

// malformedAnswer returns the error of an answer that can't be what was asked for, though its status says so.
func malformedAnswer(status int) *outboundError {
	return &outboundError{status: status, reason: outboundMalformed}
}

// vendorSaid returns the outcome of an error of a call; vendorUnknown: it is nil, or of something else.
func vendorSaid(err error) vendorOutcome {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		return failed.outcome
	}
	return vendorUnknown
}

// reasonOf returns the reason of an error of a call; "": it is nil, or of something else.
func reasonOf(err error) string {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		return failed.reason
	}
	return ""
}

// isMissing reports whether the vendor itself says that what a call is about does not exist. A 404 of a proxy in
// between proves nothing: an entry that is taken as missing may be written again.
func isMissing(err error) bool { return vendorSaid(err) == vendorMissing }

// passingStatuses are the statuses below 500 that do not mean that the request itself is wrong, and say nothing about
// whether it was carried out.
var passingStatuses = []int{
	http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests,
}

// outcome returns what HTTP says of an answer whose status is not 2xx. own reports whether the answer has the
// vendor's own form: any other may be of a proxy in between, and proves nothing.
func (a *outboundAnswer) outcome(own bool) vendorOutcome {
	switch {
	case a.status == http.StatusTooManyRequests:
		return vendorBusy
	case !own || a.status < 400 || a.status >= 500 || slices.Contains(passingStatuses, a.status):
		return vendorUnknown
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return vendorDenied
	case a.status == http.StatusNotFound:
		return vendorMissing
	}
	return vendorRefused
}

// ask is do for a client of a vendor: an answer whose status is not 2xx is an error, too, beside the answer. classify
// sets the outcome and the reason of that error; before, they are vendorUnknown and a text such as "http_502". now is
// the wall clock.
func (o *outbound) ask(
	ctx context.Context, q outboundRequest, now time.Time, classify func(*outboundAnswer, *outboundError),
) (*outboundAnswer, error) {
	answer, err := o.do(ctx, q)
	if err != nil || answer.ok() {
		return answer, err
	}
	failed := &outboundError{status: answer.status, reason: "http_" + strconv.Itoa(answer.status)}
	failed.wait, _ = retryAfter(answer.header, now)
	classify(answer, failed)
	return answer, failed
}

// jittered returns d and up to a tenth more, at random, so that requests that failed together are not
// retried together.
func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return d + rand.N(d/10+1)
}

// retryAfter returns how long from now an answer asks to wait, at most maxRetryAfter: its header
// Retry-After, in seconds or as a date (RFC 9110, section 10.2.3). A date in the past is 0. It
// reports false if there is none that can be read.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text != "" && strings.Trim(text, "0123456789") == "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if most := int64(maxRetryAfter / time.Second); err != nil || n > most { // err: it overflows an int64
			n = most
		}
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}

// Whether calls fail for a reason that is this machine's or its network's, rather than that of who is called.

// A callFault is why a call had no answer, if that may be the fault of this machine or its network; "": it had one.
type callFault string

const (
	callDNS        callFault = "names of hosts can't be looked up"
	callUnverified callFault = "no authority that is known here has signed the certificates"
	callUnroutable callFault = "the network can't be reached"
	callTimeout    callFault = "nothing answers in time"
	callBroken     callFault = "connections are refused or broken"
)

// callFaults are the faults of calls, with what to do when most calls to different hosts fail alike.
var callFaults = map[callFault]string{
	callDNS:        "'getent hosts example.com' must print an address: look at /etc/resolv.conf",
	callUnverified: "'apt-get install ca-certificates', then restart the service",
	callUnroutable: "'ip route' must print a default route",
	callTimeout:    "'curl -sI https://example.com' shows whether a firewall is in the way",
	callBroken:     "'curl -sI https://example.com' shows whether a firewall is in the way",
}

// What the log and status say of calls.
const (
	callsFailAlike = "most calls to different hosts fail alike"
	noRootsText    = "this machine knows no certificate authority, so nothing can be called over https"
)

// rootPlaces are the files and directories in which crypto/x509 looks for certificate authorities on Linux, unless
// SSL_CERT_FILE and SSL_CERT_DIR name others.
var rootPlaces = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem", "/etc/ssl/certs", "/etc/pki/tls/certs"}

// noRoots reports whether this machine knows no certificate authority: all places are missing or empty. It reads no
// certificate, since a start would take twice as long, and hold them in memory for good.
func noRoots(getenv func(string) string) bool {
	places := slices.Concat(strings.Split(getenv("SSL_CERT_DIR"), ":"), []string{getenv("SSL_CERT_FILE")})
	if getenv("SSL_CERT_FILE") == "" || getenv("SSL_CERT_DIR") == "" {
		places = append(places, rootPlaces...)
	}
	return !slices.ContainsFunc(places, func(place string) bool {
		info, err := os.Stat(place)
		if err != nil || !info.IsDir() {
			return err == nil && info.Size() > 0
		}
		inside, _ := filepath.Glob(filepath.Join(place, "*"))
		return len(inside) > 0
	})
}

// faultOfCall returns the fault of a call that has ended with an error. says is false if the error tells nothing about
// the network: that a name does not exist, or what the host or its owner is to blame for.
func faultOfCall(err error) (fault callFault, says bool) {
	var lookup *net.DNSError
	var known *outboundError
	errors.As(err, &known)
	switch {
	case errors.As(err, &lookup):
		return callDNS, !lookup.IsNotFound
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.SystemRootsError)):
		return callUnverified, true
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETDOWN),
		errors.Is(err, syscall.EPERM):
		return callUnroutable, true
	case known.reason == outboundTimeout:
		return callTimeout, true
	case known.reason == outboundNoConnect:
		return callBroken, true
	}
	return "", known.reason == outboundTLS || known.reason == outboundTooLarge || known.reason == outboundMalformed
}

// hostOf returns the host of a URL without its port.
func hostOf(normal string) string {
	u, err := url.Parse(normal)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

const (
	reachHosts  = 20               // how many hosts a reachability remembers, those that were called last
	reachFor    = 15 * time.Minute // for how long it remembers them
	reachLeast  = 3                // hosts that must fail alike before that is told
	reachLasted = 10 * time.Second // for which they must have failed before that is told
)

// A reachability tells whether most calls to different hosts fail alike, which is the fault of this machine or its
// network rather than theirs. It compares the last call to each of the reachHosts hosts that were called last.
type reachability struct {
	mu    sync.Mutex
	calls []lastCall // the latest last
	fault callFault  // with which most of them have failed; "": with none
	since time.Time
}

type lastCall struct {
	host  string
	at    time.Time
	fault callFault
}

// note records how a call has ended.
func (r *reachability) note(host string, fault callFault) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = slices.DeleteFunc(r.calls, func(c lastCall) bool { return c.host == host || now.Sub(c.at) > reachFor })
	if len(r.calls) == reachHosts {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, lastCall{host, now, fault})
	found, counts := callFault(""), map[callFault]int{}
	for _, c := range r.calls {
		counts[c.fault]++
	}
	for known, n := range counts {
		if known != "" && 2*n > len(r.calls) && (n >= reachLeast || known == r.fault) {
			found = known
		}
	}
	if found != r.fault {
		r.fault, r.since = found, now
	}
}

// failing returns the fault with which most calls have failed for reachLasted, and since when; "": there is none.
func (r *reachability) failing() (fault callFault, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == "" || time.Since(r.since) < reachLasted {
		return "", time.Time{}
	}
	return r.fault, r.since
}
