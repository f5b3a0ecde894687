/* SPDX-License-Identifier: Apache-2.0 */
/* call: a call of the router's gRPC ports, from its one request message to its end. */
#include <stdlib.h>

#include "joint/who/audit/audit.h"
#include "router/control/service/service_priv.h"

void router_call_finish(struct router_call *k, enum cgn_code code, const char *sentence)
{
	if (k->c != NULL)
		grpc_finish(k->c, code, sentence);
}

void router_order_note(const struct router_call *k, const char *action, const char *object,
	const struct cgn_err *err)
{
	bool good = err->code == CGN_FINE;
	audit_note(k->r->shared.audit,
		&(struct audit_event){.action = action,
			.decision = good ? AUDIT_ALLOWED : AUDIT_FAILED,
			.kind = k->by[0] != '\0' ? CGN_STR("certificate") : CGN_STR("address"),
			.name = cgn_str_of(k->by),
			.from = cgn_str_of(k->from),
			.object = cgn_str_of(object),
			.why = good ? (struct cgn_str){0} : cgn_str_of(err->msg)});
}

void router_call_send(struct router_call *k, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	pb_pack(message, &b);
	if (b.bad || k->c == NULL) {
		router_call_finish(k, CGN_NO_MEMORY, "out of memory");
		return;
	}
	const struct iovec iov = {b.p, b.n};
	grpc_send(k->c, &iov, 1);
}

CGN_RC router_call_may(struct router_call *k, enum identity_action action, const char *object,
	struct cgn_err *err)
{
	struct principal who;
	if (k->c == NULL)
		return CGN_FAIL(err, CANCELLED, "the caller has left");
	access_caller(svc_access(k->r->svc), k->c, &who);
	return access_check(svc_access(k->r->svc), &who, action, cgn_str_of(object), err);
}

/* End all that a method has begun for the call. */
static void call_stop(struct router_call *k)
{
	if (k->stop != NULL)
		k->stop(k);
}

void router_call_release(struct router_call *k)
{
	if (k->c != NULL || k->pending)
		return;
	call_stop(k);
	free(k->node_id);
	free(k->document);
	pb_free(&k->policy);
	pb_free(&k->order);
	k->tag = 0;
	free(k);
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	if (k->asked) {
		router_call_finish(k, CGN_INVALID,
			"the call takes one request message, and a second one came");
		return;
	}
	k->asked = true;
	k->act(k, (struct cgn_str){(const char *)p, n});
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	if (!k->asked)
		router_call_finish(k, CGN_INVALID, "the call ended without its request message");
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->c = NULL;
	call_stop(k);
	router_call_release(k);
}

static const struct grpc_call_ops call_ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_close = on_close};

void router_call_new(struct grpc_call *c, struct router *r, void (*act)(struct router_call *, struct cgn_str))
{
	struct router_call *k = CGN_NEW(struct router_call);
	*k = (struct router_call){.tag = ROUTER_CALL_TAG, .r = r, .c = c, .act = act};
	struct principal who;
	access_caller(svc_access(r->svc), c, &who);
	(void)cgn_str_copyz(k->by, sizeof k->by, who.name);
	(void)cgn_str_copyz(k->from, sizeof k->from, grpc_peer(c));
	grpc_call_take(c, &call_ops, k);
}
