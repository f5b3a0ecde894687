/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/relay/relay_priv.h"

#include <stdlib.h>

#include "base/apierror/apierror.h"
#include "base/log/log.h"
#include "base/sum/sum.h"
#include "base/weburl/weburl.h"

#define RELAY_ARENA_BYTES ((size_t)1024 * 1024) /* Headers and chain, which policy/node/proto bounds */

/* An engine whose checks succeed and that refuses its requests is not waited for more often. */
#define RELAY_RETURNS 3

/* ---- end ---- */
static void relay_unbook(struct relay *r)
{
	if (r->booked > 0)
		grpc_budget_return(r->all->budget, r->booked);
	r->booked = 0;
}

static void relay_forget_request(struct relay *r)
{
	if (r->http != NULL)
		http_call_keep(r->http); /* An engine may answer before it has read the request */
	relay_unbook(r);
	cgn_buf_fini(&r->message);
	cgn_buf_fini(&r->own);
	cgn_arena_reset(&r->arena);
	r->forgotten = true;
	r->rq = (struct proto_generate){0};
	/* Clear the pointers into the request: a late read crashes, and does not find the bytes of another one. */
	r->placement.path = r->placement.body = r->placement.tenant = (struct cgn_str){NULL, 0};
	r->placement.chain = r->guest.chain = NULL;
}

static void relay_release(struct cgn_grave *g)
{
	struct relay *r = CGN_CONTAINER(g, struct relay, grave);
	relay_forget_request(r);
	cgn_buf_fini(&r->gather.bytes);
	cgn_arena_fini(&r->arena);
	r->tag = 0;
	free(r);
}

static void relay_leave_engine(struct relay *r, bool cancelled)
{
	struct engine *e = r->engine;
	if (e == NULL)
		return;
	const struct engine_requests *q = &e->requests;
	slotmgr_answer_end(&r->placement, NULL);
	relay_unsettle(r);
	r->engine = NULL;
	cgn_list_drop(&r->link);
	e->requests.inflight--;
	engine_left(e, &r->waiter);
	share_leave(&r->all->share, &r->share);
	metric_observe(q->seconds, cgn_since(cgn_clock_now(), r->began));
	metric_add(r->failed ? q->error : cancelled ? q->cancelled : q->ok, 1);
	r->all->ops->request_done(r->all->user);
}

static void relay_send_data(struct relay *r, const void *p, size_t n)
{
	uint8_t lead[PROTO_CHUNK_LEAD];
	union { /* iovec has no const */
		const void *in;
		void *out;
	} data = {.in = p};
	const struct iovec iov[] = {{lead, proto_chunk_lead(lead, n)}, {data.out, n}};
	grpc_send(r->call, iov, 2);
}

/* Send the gathered pieces, and stop reading from the engine while the router reads more slowly. */
static void relay_flush(struct relay *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf data = enginecall_gather_take(&r->gather);
	if (data.n > 0)
		relay_send_data(r, data.p, data.n);
	if (r->http != NULL && grpc_over_mark(r->call))
		http_call_pause(r->http);
}

static void relay_flush_hook(struct cgn_hook *h)
{
	struct relay *r = CGN_CONTAINER(h, struct relay, gather.hook);
	CGN_LIVE(r, RELAY_TAG);
	relay_flush(r);
}

/* Send the data of one turn as one message. A large piece is sent from where it lies. */
static void relay_gather(struct relay *r, const void *p, size_t n)
{
	if (enginecall_gather_add(&r->gather, p, n))
		return;
	relay_flush(r);
	relay_send_data(r, p, n);
	if (r->http != NULL && grpc_over_mark(r->call))
		http_call_pause(r->http);
}

static void relay_finish(struct relay *r, enum cgn_code code, const char *sentence)
{
	if (r->finished)
		return;
	relay_flush(r);
	r->finished = true;
	r->failed = code != CGN_FINE;
	if (r->failed)
		cgn_log_limited(WARN, "agent.relay_failed", F_STR("request", r->id),
			F_STR("code", cgn_code_name(code)), F_STR("why", sentence),
			F_BOOL("head_sent", r->head_sent));
	grpc_finish(r->call, code, sentence);
}

static void on_call_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	cgn_hook_drop(&r->gather.hook);
	if (r->http != NULL)
		http_call_cancel(&r->http); /* The engine sees the connection close and stops computing */
	relay_trace_end(r, why->code != CGN_FINE);
	relay_leave_engine(r, why->code != CGN_FINE);
	relay_unbook(r); /* The agent and its budget may end before this object is freed. */
	cgn_loop_bury(r->all->loop, &r->grave, relay_release);
}

/* ---- the engine's answer ---- */
static void relay_send_head(struct relay *r, int status, const struct proto_header *headers, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	proto_chunk_head(status, headers, n, cgn_str_of(r->engine->name), &b);
	if (b.bad) {
		relay_finish(r, CGN_NO_MEMORY, "no memory for the head of the answer");
		return;
	}
	const struct iovec iov = {b.p, b.n};
	r->head_sent = true;
	grpc_send(r->call, &iov, 1);
}

static void on_engine_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct relay *r = user;
	struct proto_header headers[PROTO_MAX_HEADERS];
	size_t n = enginecall_head(h, headers);
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	engineview_worked(&r->engine->view);
	if (h->status == 200 && relay_request(r)->facts.n_chain > 0)
		engine_blocks_seen(r->engine, relay_request(r)->facts.block_tokens);
	if (h->status == 200)
		engine_residency_sent(r->engine, relay_request(r)->facts.chain,
			relay_request(r)->facts.n_chain);
	if (h->status == 401 || h->status == 403 || h->status == 404)
		engineview_models_doubt(&r->engine->view);
	r->status = h->status;
	r->answered_at = cgn_clock_now();
	if (h->status == 200)
		slotmgr_prefilled(&r->placement);
	if (!relay_is_prefill(r) || h->status != 200)
		relay_send_head(r, h->status, headers, n);
	relay_forget_request(r);
}

static void on_engine_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	engineview_worked(&r->engine->view);
	if (!r->share.begun && !r->share.aside) {
		share_begun(&r->all->share, &r->share);
		r->all->ops->load_changed(r->all->user);
	}
	if (r->placement.mgr != NULL)
		usagescan_feed(&r->told, (struct cgn_str){(const char *)p, n});
	if (relay_is_prefill(r) && r->status == 200)
		return;
	relay_gather(r, p, n);
}

static void on_call_drain(struct grpc_call *c, void *user)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (r->http != NULL)
		http_call_resume(r->http);
}

/* The router of a prefill leg waits for the head of the answer. */
static void on_prompt_stored(struct slot_placement *p, bool ok)
{
	struct relay *r = CGN_CONTAINER(p, struct relay, placement);
	CGN_LIVE(r, RELAY_TAG);
	if (!ok) {
		relay_finish(r, CGN_UNAVAILABLE,
			"the prompt is computed, and its state could not be put into the node's store");
		return;
	}
	relay_send_head(r, 200, NULL, 0);
	relay_finish(r, CGN_FINE, NULL);
}

static void on_engine_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct relay *r = user;
	(void)c;
	(void)trailers;
	(void)n;
	CGN_LIVE(r, RELAY_TAG);
	r->http = NULL;
	if (relay_is_prefill(r) && r->status == 200) {
		slotmgr_store(&r->placement, &r->told, on_prompt_stored);
		return;
	}
	slotmgr_answer_end(&r->placement, &r->told);
	relay_finish(r, CGN_FINE, NULL);
}

static bool relay_ask_engine(struct relay *r, struct cgn_err *err);
static void relay_enter(struct relay *r);
static void relay_answer_begun(struct relay *r, const char *message);

/* An engine that is loaded for its requests went away, and got none of this one: the request waits as for a load. A process
 * that is killed closes its port before its end is known. */
static bool relay_waits_again(struct relay *r)
{
	if (r->returns == RELAY_RETURNS || r->head_sent || !engine_doubt(r->engine))
		return false;
	r->returns++;
	slotmgr_answer_end(&r->placement, NULL);
	relay_unsettle(r);
	grpc_budget_return(r->all->budget, r->own.n);
	r->booked -= r->own.n;
	cgn_buf_fini(&r->own); /* A prefill leg names its slot in it. */
	relay_enter(r);
	return true;
}

static void on_engine_fail(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	struct relay *r = user;
	struct cgn_err err = {0}, said;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	r->http = NULL;
	bool once = !r->forgotten && relay_request(r)->facts.once;
	if (stage == HTTP_FAIL_STALE && !r->retried && !r->head_sent && !once) {
		r->retried = true;
		if (relay_ask_engine(r, &err))
			return;
		why = &err;
	}
	enginecall_failed(r->engine->name, stage, why, &said);
	if (stage == HTTP_FAIL_CONNECT && said.code == CGN_UNAVAILABLE && relay_waits_again(r))
		return;
	if (said.code == CGN_UNAVAILABLE)
		engine_check_soon(r->engine);
	if (once && said.code == CGN_UNAVAILABLE && stage != HTTP_FAIL_CONNECT)
		relay_answer_begun(r, said.msg);
	else {
		enginecall_hung_up(stage, r->retried, &said);
		relay_finish(r, said.code, said.msg);
	}
}

static const struct http_call_ops engine_http_ops = {.on_head = on_engine_head,
	.on_body = on_engine_body,
	.on_end = on_engine_end,
	.on_fail = on_engine_fail};

uint32_t relay_count(const struct engine *e, struct cgn_str model)
{
	const uint64_t sum = sum64(model.p, model.n);
	uint32_t n = 0;
	cgn_list_each (l, &e->requests.relays)
		n += CGN_CONTAINER(l, struct relay, link)->model == sum;
	return n;
}

void relay_end_all(struct engine *e, const char *sentence)
{
	cgn_list_each_safe (l, &e->requests.relays) {
		struct relay *r = CGN_CONTAINER(l, struct relay, link);
		CGN_LIVE(r, RELAY_TAG);
		if (r->http != NULL)
			http_call_cancel(&r->http);
		relay_finish(r, CGN_DEADLINE, sentence);
	}
}

/* ---- the request to the engine ---- */
static bool relay_ask_engine(struct relay *r, struct cgn_err *err)
{
	struct http_field fields[ENGINECALL_FIELDS];
	char method[16];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 65536};
	struct iovec iov[RELAY_BODY_PIECES];
	size_t n = relay_request_body(r, iov);
	(void)cgn_str_copyz(method, sizeof method, relay_request(r)->method);
	weburl_path(&r->engine->door.url, relay_request(r)->path, &path);
	const struct http_request rq = {
		.method = method,
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = enginecall_fields(relay_request(r), r->engine->door.authorization, fields),
		.body_len = (int64_t)cgn_iov_bytes(iov, n),
	};
	if (path.bad || r->own.bad) {
		(void)CGN_FAIL(err, NO_MEMORY, "no memory for the request");
		return false;
	}
	if (!cgn_ok(http_call_start(r->engine->view.at.client, &rq, &engine_http_ops, r, &r->http, err)))
		return false;
	r->asked_at = cgn_clock_now();
	http_call_lend(r->http, iov, n);
	http_call_end(r->http);
	return true;
}

static void relay_answer_unsupported(struct relay *r, const char *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	apierror_put(&body,
		&(struct apierror){.message = message,
			.type = "not_supported_error",
			.code = "not_supported",
			.status = 501,
			.shape = apierror_shape_of(relay_request(r)->path),
			.request_id = relay_request(r)->request_id});
	relay_send_head(r, 501, &json, 1);
	relay_send_data(r, body.p, body.n);
	relay_finish(r, CGN_FINE, NULL);
}

/* The engine hung up, and may have begun: the router must not send the request elsewhere. */
static void relay_answer_begun(struct relay *r, const char *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	apierror_put(&body,
		&(struct apierror){.message = message,
			.type = "server_error",
			.code = "engine_failed",
			.status = 502,
			.shape = apierror_shape_of(relay_request(r)->path),
			.request_id = relay_request(r)->request_id});
	relay_send_head(r, 502, &json, 1);
	relay_send_data(r, body.p, body.n);
	relay_finish(r, CGN_FINE, NULL);
}

static void relay_answer_lacking(struct relay *r)
{
	char message[512];
	struct cgn_str rest = relay_request(r)->path, path = cgn_str_split(&rest, '?');
	(void)snprintf(message, sizeof message, "engine %s (%s) has no route %.*s", r->engine->name,
		config_enum_text(r->engine->ops->kind), CGN_STR_ARG(path));
	relay_answer_unsupported(r, message);
}

/* Refuse a prefill leg: the prompt's state can't be stored. */
static void relay_answer_unstorable(struct relay *r)
{
	relay_answer_unsupported(r, "this node can't put the state of a prompt into a store");
}

/* The engine is not loaded, and the request may not wait for it. Routers try another node; this one is not to blame. */
static void relay_answer_unloaded(struct relay *r, const struct engine_refusal *no)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	char seconds[16];
	(void)snprintf(seconds, sizeof seconds, "%u", no->retry_after);
	const struct proto_header fields[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("retry-after"), cgn_str_of(seconds)}, {CGN_STR(PROTO_REFUSED), CGN_STR("load")}};
	apierror_put(&body,
		&(struct apierror){.message = no->why,
			.type = "server_error",
			.code = "model_not_loaded",
			.status = 503,
			.shape = apierror_shape_of(relay_request(r)->path),
			.request_id = relay_request(r)->request_id});
	cgn_log_limited(INFO, "agent.not_loaded", F_STR("request", r->id), F_STR("why", no->why),
		F_U64("retry_after_s", no->retry_after));
	relay_send_head(r, 503, fields, CGN_COUNT(fields));
	relay_send_data(r, body.p, body.n);
	relay_finish(r, CGN_FINE, NULL);
}

/* The request has a slot, or is sent on unchanged. */
static void on_request_placed(struct slot_placement *p)
{
	struct relay *r = CGN_CONTAINER(p, struct relay, placement);
	struct cgn_err err = {0};
	CGN_LIVE(r, RELAY_TAG);
	if (r->finished)
		return;
	if (relay_is_prefill(r) && p->slot == SLOTS_NONE) {
		relay_answer_unstorable(r);
		return;
	}
	relay_settle(r);
	if (!relay_ask_engine(r, &err))
		relay_finish(r, err.code, err.msg);
}

/* False: the request is a prefill leg, and its prompt's state can't be stored. */
static bool relay_place(struct relay *r)
{
	const struct proto_facts *f = &relay_request(r)->facts;
	if (f->leg == COGNITORA__V1__LEG__LEG_PREFILL &&
		(!slotmgr_can_store(r->engine->slots) || f->n_chain == 0))
		return false;
	r->placement = (struct slot_placement){.id = r->id,
		.path = relay_request(r)->path,
		.body = relay_request(r)->body,
		.chain = f->chain,
		.n = f->n_chain,
		.block_tokens = f->block_tokens,
		.tenant = f->tenant,
		.leg = (int)f->leg,
		.slot = SLOTS_NONE,
		.go = on_request_placed};
	if (r->engine->tenancy != NULL)
		r->placement.at = slot_body_read(relay_request(r)->path, relay_request(r)->body);
	slotmgr_place(r->engine->slots, &r->placement);
	return true;
}

static void relay_take_engine(struct relay *r, struct engine *e)
{
	r->engine = e;
	cgn_list_push(&e->requests.relays, &r->link);
	e->requests.inflight++;
	share_peak_note(&e->requests.peak, e->requests.inflight + e->requests.direct);
	share_enter(&r->all->share, relay_request(r)->facts.router, relay_request(r)->facts.new_tokens,
		&r->share);
	if (!relay_computes(relay_request(r)->path))
		share_aside(&r->all->share, &r->share);
	else if (relay_request(r)->facts.prompt_us > 0)
		share_whole(&r->all->share, &r->share, relay_request(r)->facts.prompt_us);
	r->all->requests_total++;
	r->all->ops->load_changed(r->all->user);
}

static CGN_RC relay_admit(struct relay *r, struct cgn_err *err)
{
	struct relays *all = r->all;
	CGN_TRY(all->ops->admit(all->user, err));
	CGN_TRY(enginecall_check(relay_request(r), err));
	struct engine *e = all->ops->pick(all->user, &relay_request(r)->facts, err);
	if (e == NULL)
		return CGN_RC_OF(err->code);
	relay_take_engine(r, e);
	return CGN_OK;
}

static CGN_RC relay_read_request(struct relay *r, const uint8_t *p, size_t n, struct cgn_err *err)
{
	if (r->asked)
		return CGN_FAIL(err, INVALID, "Generate takes one request message");
	r->asked = true;
	CGN_TRY(grpc_message_take(r->call, p, n, &r->message, err));
	r->booked = r->message.n;
	CGN_TRY(proto_generate_read(cgn_buf_view(&r->message), &r->arena, &r->rq, err));
	(void)cgn_str_copyz(r->id, sizeof r->id, r->rq.request_id);
	r->model = sum64(r->rq.facts.model.p, r->rq.facts.model.n);
	relay_trace_begin(r);
	return CGN_OK;
}

static bool relay_only_loads(const struct relay *r)
{
	return cgn_str_is(relay_request(r)->path, PROTO_LOAD_PATH);
}

static void relay_answer_loaded(struct relay *r)
{
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	relay_send_head(r, 200, &json, 1);
	relay_send_data(r, "{}", 2);
	relay_finish(r, CGN_FINE, NULL);
}

static void relay_go_on(struct relay *r)
{
	if (relay_only_loads(r))
		relay_answer_loaded(r);
	else if (!relay_place(r))
		relay_answer_unstorable(r);
}

static void on_wait_over(struct engine_waiter *w, const struct engine_refusal *no)
{
	struct relay *r = CGN_CONTAINER(w, struct relay, waiter);
	CGN_LIVE(r, RELAY_TAG);
	if (r->finished)
		return;
	if (no != NULL)
		relay_answer_unloaded(r, no);
	else
		relay_go_on(r);
}

/* Send the request on, or let it wait until the engine is loaded. */
static void relay_enter(struct relay *r)
{
	char why[600];
	struct engine_refusal no;
	const struct proto_facts *f = &relay_request(r)->facts;
	struct engine_wish wish = {.bounded = f->keep_bounded};
	wish.told = proto_keep_alive_ms(f->keep_alive, &wish.ms);
	engine_wish(r->engine, &r->waiter, &wish);
	if (relay_only_loads(r) && wish.told && wish.ms == 0) {
		relay_answer_loaded(r); /* The engine is unloaded when this request has left. */
		return;
	}
	if (!engine_takes_requests(r->engine) &&
		!r->all->ops->may_wait(r->all->user, r->engine, why, sizeof why, &no)) {
		relay_answer_unloaded(r, &no);
		return;
	}
	r->waiter.over = on_wait_over;
	if (engine_enter(r->engine, &r->waiter))
		relay_go_on(r);
}

static void on_call_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct relay *r = user;
	struct cgn_err err = {0};
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (r->finished)
		return;
	if (!cgn_ok(relay_read_request(r, p, n, &err)) || !cgn_ok(relay_admit(r, &err))) {
		relay_finish(r, err.code, err.msg);
		return;
	}
	if (engine_lacks(r->engine->ops, relay_request(r)->path)) {
		relay_answer_lacking(r);
		return;
	}
	relay_enter(r);
}

static void on_call_half_close(struct grpc_call *c, void *user)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (!r->asked)
		relay_finish(r, CGN_INVALID, "Generate needs a request message");
}

static const struct grpc_call_ops ops = {.on_message = on_call_message,
	.on_half_close = on_call_half_close,
	.on_drain = on_call_drain,
	.on_close = on_call_close};

void relay_open(struct relays *all, struct grpc_call *c)
{
	struct relay *r = CGN_NEW(struct relay);
	*r = (struct relay){.tag = RELAY_TAG, .all = all, .call = c, .began = cgn_clock_now()};
	cgn_list_init(&r->link);
	cgn_list_init(&r->waiter.link);
	r->gather.loop = all->loop;
	cgn_hook_init(&r->gather.hook, relay_flush_hook);
	cgn_arena_init(&r->arena, RELAY_ARENA_BYTES);
	grpc_call_take(c, &ops, r);
}
