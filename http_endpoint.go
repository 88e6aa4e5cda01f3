package main

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// An endpoint is what a route does: how its request is read, and who answers it with what. The OpenAPI document, the
// members that a strict route knows and the options of commands are made of it, so nothing of a request or an answer
// is said twice.
//
// Reading and answering are two functions. The first reads all that the request may have, whoever calls and whatever
// the values are: it may ask whether a member is there, and leaves every other judgement to the second. The second has
// the name of the operation, and its comment is what the document says of it: the first sentence is the summary.
type endpoint struct {
	run             handler
	read            func(in *input)   // reads a request, or says what it would read
	known           func() knownNames // what it reads
	request, answer reflect.Type      // of what it reads, and of what it answers with, as JSON; see also answerForm
	others          []reflect.Type    // what it may answer with instead
	doc             uintptr           // the answering function, whose comment describes the route
}

// A noMembers is the request of an endpoint that reads none, and the answer of one that answers with none.
type noMembers struct{}

func readNoMembers(*input) noMembers { return noMembers{} }

// A reader reads a request, and returns what answers it for who was admitted.
type reader func(in *input) func(ctx context.Context, c *call, of owner) (any, error)

// owned returns an endpoint that acts on what one owner has: it reads, has the caller charged, refuses what is wrong,
// and answers for the owner on whose rows the caller may act (server.finishReadingFor), which ?account_id= may name.
func owned[Req, Res any](
	s *server, read func(*input) Req, answer func(context.Context, *call, owner, Req) (Res, error),
) *endpoint {
	return s.ownedAny(func(in *input) func(context.Context, *call, owner) (any, error) {
		request := read(in)
		return func(ctx context.Context, c *call, of owner) (any, error) { return answer(ctx, c, of, request) }
	}, reflect.TypeFor[Req](), reflect.TypeFor[Res](), answer)
}

// ownedAny is owned for any types: what it does is not copied for every pair of them.
func (s *server) ownedAny(read reader, request, answer reflect.Type, function any) *endpoint {
	e := newEndpoint(func(in *input) { read(in); in.accountID() }, request, answer, function)
	e.run = func(ctx context.Context, c *call) (any, error) {
		answer := read(c.in)
		of, err := s.finishReadingFor(ctx, c)
		if err != nil {
			return nil, err
		}
		return answer(ctx, c, of)
	}
	return e
}

// admitted returns an endpoint whose caller is charged (server.admit), and that acts on nobody's rows or finds out by
// itself on whose.
func admitted[Req, Res any](
	s *server, read func(*input) Req, answer func(context.Context, *call, Req) (Res, error),
) *endpoint {
	e := admitting(read, answer)
	e.run = func(ctx context.Context, c *call) (any, error) {
		request := read(c.in)
		if err := s.finishReading(ctx, c); err != nil {
			return nil, err
		}
		return answer(ctx, c, request)
	}
	return e
}

// admitting returns an endpoint whose answering function admits the caller itself, before it decides anything.
func admitting[Req, Res any](read func(*input) Req, answer func(context.Context, *call, Req) (Res, error)) *endpoint {
	e := newEndpoint(func(in *input) { read(in) }, reflect.TypeFor[Req](), reflect.TypeFor[Res](), answer)
	e.run = func(ctx context.Context, c *call) (any, error) { return answer(ctx, c, read(c.in)) }
	return e
}

// servedBy returns the endpoint of a root path: serve writes a Res, as JSON or in the type that its answerForm has.
func servedBy[Res any](serve func(w *response, r *http.Request)) *endpoint {
	return newEndpoint(func(*input) {}, reflect.TypeFor[noMembers](), reflect.TypeFor[Res](), serve)
}

// newEndpoint returns an endpoint without its run. function is the one that answers, whose comment describes it.
func newEndpoint(read func(*input), request, answer reflect.Type, function any) *endpoint {
	if request.Kind() == reflect.Pointer {
		request = request.Elem()
	}
	return &endpoint{read: read, request: request, answer: answer, doc: reflect.ValueOf(function).Pointer(),
		known: sync.OnceValue(func() knownNames { return knownOf(read) })}
}

// answeringWith returns an endpoint whose function encodes its answer itself, in a *reply or a *staticFile: a T or,
// if it is called again, one of several types.
func answeringWith[T any](e *endpoint) *endpoint {
	if e.answer == reflect.TypeFor[*reply]() || e.answer == reflect.TypeFor[*staticFile]() {
		e.answer = reflect.TypeFor[T]()
	} else {
		e.others = append(e.others, reflect.TypeFor[T]())
	}
	return e
}

// complete sets what follows from the rest of a route: one with a scope needs a token, and one that writes with one of
// the careful scopes refuses members that it does not know.
func (rt *route) complete(careful []string) {
	if rt.endpoint != nil {
		rt.run = rt.endpoint.run
	}
	if rt.scope != "" && rt.token == tokenIgnored {
		rt.token = tokenRequired
	}
	rt.careful = rt.careful || rt.method() != "GET" && slices.ContainsFunc(careful, func(scope string) bool {
		return slices.Contains(strings.Fields(rt.scope), scope)
	})
}
