/* SPDX-License-Identifier: Apache-2.0 */
/* selection: from the head and the body of a request for a selection to the nodes that can be chosen. */
#include "router/answer/selection/selection.h"

#include "io/net/net/addr.h"
#include "router/answer/selection/reservations.h"
#include "router/answer/selection/selection_priv.h"
#include "router/request/permit/permit.h"

#define BAD_REQUEST "invalid_request_error"
#define OWN_TARGET  "/v1/completions" /* The route that a body of token ids is for. */

/* ---- the route ---- */

static enum gw_select_op op_of(struct cgn_str path)
{
	struct cgn_str rest = path, bare = cgn_str_split(&rest, '?');
	if (cgn_str_is(bare, "/select"))
		return SELECT_PICK;
	return cgn_str_is(bare, "/reservations") ? SELECT_CERTAIN : SELECT_RESERVE;
}

enum gw_step gw_select_route(struct gw_req *r)
{
	if (r->state != GW_AUTH || r->client.route->kind != GW_SELECT)
		return STEP_AGAIN;
	struct gw_selecting *s = r->selecting = cgn_arena_zero(&r->arena, sizeof *s);
	if (s == NULL)
		return gw_refuse_no_memory(r, "memory");
	s->op = op_of(r->client.path);
	s->own = http_query_get(r->client.path, "for").p == NULL;
	struct cgn_str id = http_query_get(r->client.path, "selection_id");
	if (id.p != NULL && (!selection_id_is_ok(id) || !cgn_str_copyz(s->ask.id, sizeof s->ask.id, id)))
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_parameter", .param = "selection_id",
				.reason = "invalid"},
			"selection_id is at most %d visible ASCII characters without / and %%",
			SELECTION_ID_MAX);
	const struct gw_route_row *row = gw_route_meant(r->client.path, OWN_TARGET);
	if (row == NULL)
		return gw_refuse(r,
			&(struct gw_refusal){400, BAD_REQUEST, "invalid_parameter", .param = "for",
				.reason = "invalid"},
			"for is the path of a request that engines answer with tokens, such as /v1/chat/completions");
	r->client.route = row;
	r->client.target = cgn_str_of(row->path);
	return STEP_AGAIN;
}

/* ---- the body ---- */

/* The lists of |ask| are used after the client's body is gone. */
static bool ask_keep(struct gw_req *r, struct selection_ask *ask)
{
	if (ask->workers.raw.p == NULL)
		return true;
	ask->workers.raw = cgn_arena_str(&r->arena, ask->workers.raw);
	return ask->workers.raw.p != NULL;
}

/* Any thread. */
static void own_run(struct gw_req *r)
{
	struct gw_selecting *s = r->selecting;
	s->bad = !cgn_ok(selection_read(cgn_buf_view(&r->body.bytes), &s->ask, &s->err));
	if (!s->bad)
		selection_request(&s->ask, &s->body);
}

static enum gw_step own_refuse(struct gw_req *r, const char *why)
{
	return gw_refuse(r, &(struct gw_refusal){400, BAD_REQUEST, "invalid_body", .reason = "invalid"}, "%s",
		why);
}

static void own_then(struct gw_req *r)
{
	struct gw_selecting *s = r->selecting;
	s->read = true;
	if (s->bad)
		(void)own_refuse(r, s->err.msg);
	else if (s->op == SELECT_CERTAIN && (!s->ask.one || s->ask.id[0] == '\0'))
		(void)own_refuse(r, "a reservation has a worker_id and a selection_id");
	else if (s->body.bad || !ask_keep(r, &s->ask))
		(void)gw_refuse_no_memory(r, "memory");
	else {
		s->ask.model = s->ask.ids = (struct json_val){0};
		gw_body_replace(r, &s->body);
		s->then(r);
	}
	cgn_buf_fini(&s->body);
}

bool gw_select_read(struct gw_req *r, void (*then)(struct gw_req *r))
{
	struct gw_selecting *s = r->selecting;
	if (s == NULL || s->read)
		return true;
	if (s->own) {
		s->then = then;
		gw_body_work(r, own_run, own_then);
		return false;
	}
	s->read = true;
	s->given = r->body.bytes.n;
	if (s->op == SELECT_CERTAIN)
		(void)own_refuse(r, "a reservation of a certain worker takes token_ids, and no ?for=");
	return r->state == GW_ROUTE;
}

void gw_select_end(struct gw_req *r)
{
	if (r->selecting != NULL)
		cgn_buf_fini(&r->selecting->body);
}

/* ---- the nodes ---- */

static bool is_numeric(const char *address)
{
	struct net_addr a;
	struct cgn_err err;
	return cgn_ok(net_addr_parse(address, &a, &err)) && !a.local && net_host_is_ip(a.host);
}

struct cgn_str gw_select_endpoint(const struct gw_req *r, const struct view_node *n)
{
	const struct view_direct *d = &n->direct;
	bool here = d->host == NULL || d->host[0] == '\0' || strcmp(d->host, r->w->shared->host_id) == 0;
	/* A gateway sends in clear, without a key, and with the client's path. */
	bool plain = d->door == NULL ||
		(!d->door->url.tls && d->door->authorization == NULL && d->door->url.base[0] == '\0');
	if (d->address == NULL || !plain || !here || !is_numeric(d->address))
		return (struct cgn_str){NULL, 0};
	return cgn_str_of(d->address);
}

static bool is_wanted(const struct gw_req *r, const struct view_node *n)
{
	const struct gw_selecting *s = r->selecting;
	struct cgn_str endpoint = gw_select_endpoint(r, n);
	if (endpoint.n == 0 || !selection_allows(&s->ask, selection_worker(n->node_id_hash)))
		return false;
	return !r->client.subset_told || selection_lists(r->client.subset, endpoint);
}

const uint16_t *gw_select_excluded(struct gw_req *r, const struct view_model *m, const uint16_t *tried,
	size_t *n)
{
	uint16_t *all = cgn_arena_get(&r->arena, (*n + m->n_ready) * sizeof *all);
	if (all == NULL)
		return tried; /* gw_select_book looks again. */
	if (*n > 0)
		memcpy(all, tried, *n * sizeof *all);
	for (size_t i = 0; i < m->n_ready; i++)
		if (!is_wanted(r, m->ready[i]))
			all[(*n)++] = m->ready[i]->slot;
	return all;
}

/* A salt of the client's own is taken out of the body (isolate.h): the places in it have moved. */
static bool is_shifted(const struct gw_req *r)
{
	return !r->selecting->own && r->selecting->given != r->body.bytes.n;
}

bool gw_select_refuses(struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	const bool narrowed =
		r->client.subset_told || r->selecting->ask.one || r->selecting->ask.workers.raw.p != NULL;
	size_t reachable = 0;
	if (is_shifted(r)) {
		(void)gw_refuse(r, &(struct gw_refusal){501, "not_supported_error", "not_supported"},
			"no node is chosen for a body with a cache_salt where tenants are kept apart (security.isolation): leave it out");
		return true;
	}
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		if (is_wanted(r, m->ready[i]))
			return false;
		reachable += gw_select_endpoint(r, m->ready[i]).n > 0;
	}
	if (!narrowed && (m == NULL || m->n_ready == 0))
		return false; /* As any request: it may wait for a node. */
	(void)gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "no_node", .reason = "no_node", .retry_after = 1},
		reachable > 0
			? "none of the endpoints that may be chosen is ready for %.*s"
			: "no node that is ready for %.*s lets others ask its engine: set agent.direct there, and give the engine KV events and an address that they reach",
		CGN_STR_ARG(r->prompt.model));
	return true;
}

struct gw_reservation_name gw_select_name(const struct gw_req *r, struct cgn_str id)
{
	return (struct gw_reservation_name){id, gw_permit_holder(r)};
}

bool gw_select_sweep(struct gw_worker *w)
{
	return w->shared->reservations != NULL &&
		gw_reservations_sweep(w->shared->reservations, w->chooser, cgn_loop_now(w->loop)) > 0;
}
