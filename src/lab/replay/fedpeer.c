/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/replay/federation_priv.h"
#include "policy/route/peer/beat.h"
#include "policy/route/peer/load.h"

#define BEAT_BYTES  200
#define ASK_BYTES   300
#define HEAD_BYTES  200 /* HTTP head of an answer; not counted as summary. */
#define ASK_TIMEOUT (30 * CGN_SEC)
#define SOON        (250 * CGN_MSEC) /* Until the first set of the peer is made. */
#define MODEL       "replayed"

/* Clusters do not beat and ask in step: each pair begins a moment later than the one before. */
static cgn_nsec phase_of(const struct federation *f, uint32_t a, uint32_t b, cgn_nsec period)
{
	const uint32_t n = f->cfg->clusters;
	return 1 + period * (a * n + b) / (n * n);
}

static void message_after(struct federation *f, enum federation_kind kind, uint32_t from, uint32_t to,
	cgn_nsec wait)
{
	federation_push(f, federation_to(kind, from, to, f->now + wait));
}

void fedpeer_begin(struct federation *f)
{
	const uint32_t n = f->cfg->clusters;
	for (uint32_t i = 0; i < n; i++) {
		f->v[i].journal = (struct peer_journal){0};
		if (f->cfg->forwards && f->cfg->interval > 0)
			message_after(f, FEDERATION_TELL, i, i, phase_of(f, i, i, f->cfg->interval));
		for (uint32_t j = 0; j < n; j++) {
			struct federation_peer *p = &f->v[i].peers[j];
			cgn_list_init(&p->calls);
			p->lost = true; /* Until it answers. */
			if (i == j || !f->cfg->forwards)
				continue;
			message_after(f, FEDERATION_BEAT, i, j, phase_of(f, i, j, PEER_BEAT_EVERY));
			if (f->cfg->interval > 0)
				message_after(f, FEDERATION_ASK, i, j, phase_of(f, i, j, f->cfg->interval));
		}
	}
}

void fedpeer_end(struct federation *f)
{
	for (uint32_t i = 0; i < f->cfg->clusters; i++) {
		peer_journal_fini(&f->v[i].journal);
		for (uint32_t j = 0; j < f->cfg->clusters; j++)
			peer_set_unref(&f->v[i].peers[j].known.set);
	}
}

/* ---- heartbeats ---- */

static void beat_send(struct federation *f, const struct federation_message *m)
{
	const cgn_nsec late = f->now + PEER_BEAT_TIMEOUT;
	cgn_nsec at = wan_arrival(&f->wan, m->from, m->to, BEAT_BYTES, f->now);
	if (at < late)
		at = wan_arrival(&f->wan, m->to, m->from, BEAT_BYTES, at);
	struct federation_message back = federation_to(FEDERATION_BEAT_BACK, m->from, m->to, at);
	if (at > late)
		back = federation_to(FEDERATION_BEAT_LOST, m->from, m->to, late);
	back.number = f->now;
	federation_push(f, back);
}

static void beat_back(struct federation *f, const struct federation_message *m)
{
	struct federation_peer *p = &f->v[m->from].peers[m->to];
	p->rtt = peer_rtt_learn(p->rtt, cgn_since(f->now, m->number));
	p->lost = false;
	message_after(f, FEDERATION_BEAT, m->from, m->to, PEER_BEAT_EVERY);
}

static void beat_lost(struct federation *f, const struct federation_message *m)
{
	struct federation_peer *p = &f->v[m->from].peers[m->to];
	if (p->lost || peer_is_silent(f->now, p->heard)) {
		f->out->lost += !p->lost;
		p->lost = true;
		fedcall_lost(f, m->from, m->to);
	}
	message_after(f, FEDERATION_BEAT, m->from, m->to, PEER_BEAT_EVERY);
}

/* ---- telling ---- */

static void block_take(void *user, uint64_t digest)
{
	peer_draft_add(user, peer_fingerprint(digest));
}

static void set_make(struct federation *f, const struct federation_message *m)
{
	struct federation_cluster *x = &f->v[m->from];
	struct kvindex_nodes nodes = {0};
	struct peer_draft draft = {0};
	for (size_t i = 0; i < x->r.model->n_ready; i++) {
		uint16_t id = x->r.model->ready[i]->index_id;
		nodes.bits[id / 64] |= UINT64_C(1) << id % 64;
	}
	for (unsigned part = 0; part < KVINDEX_PARTS; part++) {
		(void)kvindex_part(x->r.index, &nodes, part, block_take, &draft);
		peer_draft_part(&draft);
	}
	struct peer_set *set = peer_draft_finish(&draft);
	f->no_memory |= set == NULL;
	if (set != NULL)
		peer_journal_add(&x->journal, &set, 0, PEER_VERSION, 1);
	message_after(f, FEDERATION_TELL, m->from, m->from, f->cfg->interval);
}

static struct peer_load load_of(const struct replay *r)
{
	struct peer_load_sums sums = {0};
	for (size_t i = 0; i < r->model->n_ready; i++) {
		const struct view_node *n = r->model->ready[i];
		peer_load_add(&sums, &r->cluster->stats[n->slot], n->width, r->cfg->rules->max_inflight, 0);
	}
	struct peer_load l = peer_load_of(&sums);
	l.name = CGN_STR(MODEL);
	l.waiting = (uint32_t)admission_waiting(r->admission);
	return l;
}

static void summary_tell(struct federation *f, const struct federation_message *m)
{
	CGN_ON_EXIT(peer_set_unref) struct peer_set *whole = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf sets = {0};
	const struct federation_cluster *x = &f->v[m->to];
	struct peer_summary s = {.n_models = 1};
	struct federation_message back = federation_to(FEDERATION_ANSWER, m->from, m->to, 0);
	peer_journal_ask(&x->journal, m->number, PEER_VERSION, &s, &whole, &sets);
	s.models[0] = load_of(&x->r);
	peer_summary_put(&s, whole, cgn_buf_view(&sets), &back.body);
	f->no_memory |= sets.bad || back.body.bad;
	back.question = m->question;
	back.at = wan_arrival(&f->wan, m->to, m->from, HEAD_BYTES + back.body.n, f->now);
	federation_push(f, back);
}

/* ---- asking ---- */

static void summary_ask(struct federation *f, const struct federation_message *m)
{
	struct federation_peer *p = &f->v[m->from].peers[m->to];
	struct federation_message ask = federation_to(FEDERATION_ASKED, m->from, m->to,
		wan_arrival(&f->wan, m->from, m->to, ASK_BYTES, f->now));
	ask.question = ++p->question;
	ask.number = p->known.generation;
	federation_push(f, ask);
	ask = federation_to(FEDERATION_ASK_LATE, m->from, m->to, f->now + ASK_TIMEOUT);
	ask.question = p->question;
	federation_push(f, ask);
}

static void known_change(struct federation_peer *p, struct peer_set *set, const struct peer_summary *s)
{
	peer_set_unref(&p->known.set);
	p->known = s != NULL ? (struct peer_known){set, s->generation, s->shift} : (struct peer_known){0};
}

static void summary_take(struct federation *f, const struct federation_message *m)
{
	struct federation_peer *p = &f->v[m->from].peers[m->to];
	static struct peer_summary s; /* 7 KiB. */
	struct peer_set *set = NULL;
	struct cgn_err err;
	cgn_nsec wait = f->cfg->interval;
	cgn_rc rc = peer_summary_get(cgn_buf_view(&m->body), &p->known, &s, &set, &err);
	f->out->summary_bytes += m->body.n;
	f->no_memory |= rc.code == CGN_NO_MEMORY;
	p->question++;
	if (!cgn_ok(rc)) {
		f->out->diverged++;
		known_change(p, NULL, NULL);
		message_after(f, FEDERATION_ASK, m->from, m->to, 1);
		return;
	}
	f->out->summaries++;
	f->out->whole += s.base == 0;
	f->blocks_told += s.blocks;
	known_change(p, set, &s);
	p->told = true;
	p->load = s.models[0];
	p->load.name = CGN_STR(MODEL);
	p->valid_to = f->now + peer_valid_span(f->cfg->interval);
	p->open_then = p->open;
	if (s.generation == 0 && wait > SOON)
		wait = SOON;
	message_after(f, FEDERATION_ASK, m->from, m->to, wait);
}

void fedpeer_receive(struct federation *f, struct federation_message *m)
{
	const struct federation_peer *p = &f->v[m->from].peers[m->to];
	if (m->kind == FEDERATION_BEAT)
		beat_send(f, m);
	else if (m->kind == FEDERATION_BEAT_BACK)
		beat_back(f, m);
	else if (m->kind == FEDERATION_BEAT_LOST)
		beat_lost(f, m);
	else if (m->kind == FEDERATION_TELL)
		set_make(f, m);
	else if (m->kind == FEDERATION_ASK)
		summary_ask(f, m);
	else if (m->kind == FEDERATION_ASKED)
		summary_tell(f, m);
	else if (m->question != p->question)
		return; /* Answered, or too late. */
	else if (m->kind == FEDERATION_ANSWER)
		summary_take(f, m);
	else
		message_after(f, FEDERATION_ASK, m->from, m->to, f->cfg->interval);
}
