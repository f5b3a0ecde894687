/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: the side that takes. */
#include <stdlib.h>

#include "base/weburl/weburl.h"
#include "sim/handoff/handoff_priv.h"

#define FETCH_TAG     0x51b0fe7cU
#define FETCH_TIMEOUT (60 * CGN_SEC)
#define FETCH_AGAIN   CGN_MSEC

struct sim_fetch {
	uint32_t tag;
	struct sim_handoff *h;
	struct sim_peer *peer;
	struct webask *fetch; /* NULL: none is under way. */
	struct cgn_timer again;
	struct cgn_buf question;
	void (*done)(void *user);
	void *user;
	cgn_nsec began;
	bool waits; /* The prefill leg was sent together with this one and may not be there yet. */
	bool got;
	uint32_t from, n;
	struct digest *names; /* Names of the blocks that are fetched. */
};

/* ---- other simulators ---- */

static struct sim_peer *peer_open(struct sim_handoff *h, const char *url)
{
	if (h->n_peers == SIM_PEERS_MAX)
		return NULL;
	struct sim_peer *p = CGN_NEW(struct sim_peer);
	struct http_client_cfg cfg = {.addr = p->url.addr,
		.authority = p->url.authority,
		.proto = HTTP_1,
		.max_conns = 256};
	if (!cgn_ok(weburl_parse(url, &p->url, NULL)) ||
		!cgn_ok(http_client_new(h->loop, &cfg, &p->client, NULL))) {
		free(p);
		return NULL;
	}
	p->at = (struct webask_endpoint){.client = p->client, .url = &p->url};
	return h->peers[h->n_peers++] = p;
}

static struct sim_peer *peer_of(struct sim_handoff *h, const struct sim_handoff_ask *ask)
{
	char url[HANDOFF_HOST_MAX + 32];
	struct weburl parsed;
	bool v6 = strchr(ask->host, ':') != NULL;
	(void)snprintf(url, sizeof url, v6 ? "http://[%s]:%u" : "http://%s:%u", ask->host, ask->port);
	if (!cgn_ok(weburl_parse(url, &parsed, NULL)))
		return NULL;
	for (uint32_t i = 0; i < h->n_peers; i++)
		if (strcmp(h->peers[i]->url.addr, parsed.addr) == 0)
			return h->peers[i];
	return peer_open(h, url);
}

/* ---- the fetch ---- */

static void fetch_end(struct sim_fetch *f, const char *failure)
{
	struct sim_handoff_stats *s = &f->h->stats;
	f->got = failure == NULL;
	if (f->got) {
		s->taken++;
		s->blocks += f->n;
		s->bytes += (uint64_t)f->n * f->h->cfg->kv_block_bytes;
	} else {
		s->failed++;
		(void)cgn_str_copyz(s->last_failure, sizeof s->last_failure, cgn_str_of(failure));
	}
	f->done(f->user);
}

static bool values_match(const struct sim_fetch *f, struct cgn_str body)
{
	size_t block = f->h->cfg->kv_block_bytes;
	bool match = body.n == f->n * block;
	for (uint32_t i = 0; match && i < f->n; i++) {
		const struct iovec iov = {(char *)(uintptr_t)body.p + i * block, block};
		match = sim_store_value_matches(&f->names[i], &iov, 1);
	}
	return match;
}

static void on_answer(void *user, const struct webask_answer *r)
{
	struct sim_fetch *f = user;
	char why[160];
	CGN_LIVE(f, FETCH_TAG);
	f->fetch = NULL;
	bool early = r->err->code == CGN_FINE && (r->status == 425 || r->status == 404);
	if (early && f->waits && cgn_since(cgn_loop_now(f->h->loop), f->began) < SIM_FETCH_WAIT) {
		cgn_timer_set(&f->again, FETCH_AGAIN);
		return;
	}
	if (webask_is_ok(r)) {
		fetch_end(f, values_match(f, r->body) ? NULL : "the bytes are not those of the prompt");
		return;
	}
	if (r->err->code != CGN_FINE)
		(void)snprintf(why, sizeof why, "%.150s", r->err->msg);
	else
		(void)snprintf(why, sizeof why, "%d: %.*s", r->status,
			(int)(r->body.n < 140 ? r->body.n : 140), r->body.n > 0 ? r->body.p : "");
	fetch_end(f, why);
}

static void fetch_send(struct cgn_timer *t)
{
	struct sim_fetch *f = CGN_CONTAINER(t, struct sim_fetch, again);
	CGN_LIVE(f, FETCH_TAG);
	const struct webask_question ask = {.path = "/sim/handoff",
		.json = cgn_buf_view(&f->question),
		.max_bytes = SIM_FETCH_BYTES + 1024,
		.timeout = FETCH_TIMEOUT};
	if (f->peer == NULL ||
		!cgn_ok(webask_start(f->h->loop, &f->peer->at, &ask, on_answer, f, &f->fetch, NULL)))
		fetch_end(f, "the other engine's address makes no sense");
}

static void question_write(const struct sim_handoff *h, const struct sim_fetch_ask *ask, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	char last[24] = "";
	if (ask->blocks > 0)
		(void)snprintf(last, sizeof last, "%016llx",
			(unsigned long long)digest_short(&ask->wants.names[ask->blocks - 1]));
	json_open(&o, '{');
	json_key_z(&o, "id", ask->from->id);
	json_key_z(&o, "engine", ask->from->engine);
	json_key_z(&o, "last", last);
	json_key_u64(&o, "from", ask->wants.from);
	json_key_u64(&o, "n", ask->wants.n);
	json_key_u64(&o, "blocks", ask->blocks);
	json_key_u64(&o, "block_tokens", h->cfg->block_tokens);
	json_close(&o, '}');
}

struct sim_fetch *sim_fetch_new(struct sim_handoff *h, const struct sim_fetch_ask *ask,
	void (*done)(void *user), void *user)
{
	struct sim_fetch *f = CGN_NEW(struct sim_fetch);
	*f = (struct sim_fetch){.tag = FETCH_TAG,
		.h = h,
		.done = done,
		.user = user,
		.from = ask->wants.from,
		.n = ask->wants.n,
		.began = cgn_loop_now(h->loop)};
	f->waits = handoff_ops_of(h->cfg->handoff.kind)->order == HANDOFF_AT_ONCE;
	f->names = CGN_NEW_ARRAY(struct digest, f->n);
	question_write(h, ask, &f->question);
	cgn_timer_init(&f->again, h->loop, fetch_send);
	if (f->n > 0)
		memcpy(f->names, ask->wants.names + f->from, f->n * sizeof *f->names);
	f->peer = peer_of(h, ask->from);
	cgn_timer_set(&f->again, 0);
	return f;
}

void sim_fetch_free(struct sim_fetch **take)
{
	struct sim_fetch *f = CGN_TAKE_LIVE(take, FETCH_TAG);
	if (f == NULL)
		return;
	webask_cancel(&f->fetch);
	cgn_timer_cancel(&f->again);
	cgn_buf_fini(&f->question);
	free(f->names);
	f->tag = 0;
	free(f);
}

bool sim_fetch_got(const struct sim_fetch *f, uint32_t *from, uint32_t *n)
{
	*from = f->from;
	*n = f->got ? f->n : 0;
	return f->got;
}
