/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/enginemodel.h"

#include <stdlib.h>
#include <string.h>

#define MODEL_TAG 0x51b0de1aU
#define JOB_TAG   0x51b70b00U

enum job_state { JOB_WAITING, JOB_RUNNING };

struct enginemodel_job {
	uint32_t tag;
	enum job_state state;
	bool held, seen; /* |seen|: the job was admitted before, and its prefix is counted. */
	struct cgn_link link;
	void *user;
	uint32_t prompt_tokens, answer_tokens;
	uint32_t given, computed, cached, handed;
	uint32_t chunk; /* Tokens of this job in the step in flight. */
	uint32_t n_blocks, cap_blocks, n_hashes;
	uint32_t *blocks;
	struct enginemodel_contents *contents;
	uint64_t hashes[];
};

struct enginemodel {
	uint32_t tag;
	struct enginemodel_cfg cfg;
	double decode_times, prefill_times; /* enginemodel_slow */
	struct enginemodel_memory *tiers;
	struct enginemodel_blocks *blocks; /* Blocks of the GPU tier. */
	struct cgn_link waiting, running;
	uint32_t n_waiting, n_running;
	cgn_nsec step_end; /* End of the step in flight; 0: none. */
	struct enginemodel_step_parts parts;
	/* Time that the step being built spends on blocks from lower tiers. */
	cgn_nsec restoring;
	struct enginemodel_progress *progress; /* Owned; max_batch entries. */
	struct enginemodel_stats stats;
};

static struct enginemodel_job *job_of(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct enginemodel_job, link);
}

CGN_RC enginemodel_new(const struct enginemodel_cfg *cfg, struct enginemodel **out)
{
	CGN_MUST(cfg->max_batch > 0 && cfg->block_tokens > 0 && cfg->step_tokens >= cfg->max_batch);
	struct enginemodel *m = CGN_NEW(struct enginemodel);
	m->tag = MODEL_TAG;
	m->cfg = *cfg;
	m->decode_times = m->prefill_times = 1;
	cgn_list_init(&m->waiting);
	cgn_list_init(&m->running);
	m->progress = calloc(cfg->max_batch, sizeof *m->progress);
	struct enginemodel_memory_cfg tiers = {.block_tokens = cfg->block_tokens,
		.keeps_none = cfg->keeps_none,
		.notes = cfg->notes,
		.listener = cfg->listener};
	memcpy(tiers.blocks, cfg->lower_blocks, sizeof tiers.blocks);
	tiers.blocks[ENGINEMODEL_TIER_GPU] = cfg->kv_blocks;
	if (m->progress == NULL || !cgn_ok(enginemodel_memory_new(&tiers, &m->tiers))) {
		enginemodel_free(&m);
		return CGN_RC_OF(CGN_NO_MEMORY);
	}
	m->blocks = enginemodel_memory_gpu(m->tiers);
	*out = m;
	return CGN_OK;
}

/* Release blocks from the last to the first, so that the end of a prefix is evicted before its beginning. */
static void job_give_back(struct enginemodel *m, struct enginemodel_job *j)
{
	while (j->n_blocks > 0)
		enginemodel_blocks_release(m->blocks, j->blocks[--j->n_blocks]);
}

static void job_free(struct enginemodel *m, struct enginemodel_job *j)
{
	CGN_LIVE(j, JOB_TAG);
	job_give_back(m, j);
	cgn_list_drop(&j->link);
	*(j->state == JOB_RUNNING ? &m->n_running : &m->n_waiting) -= 1;
	j->tag = 0;
	free(j->blocks);
	enginemodel_contents_free(&j->contents);
	free(j);
}

void enginemodel_free(struct enginemodel **take)
{
	struct enginemodel *m = CGN_TAKE_LIVE(take, MODEL_TAG);
	if (m == NULL)
		return;
	cgn_list_each_safe (l, &m->running)
		job_free(m, job_of(l));
	cgn_list_each_safe (l, &m->waiting)
		job_free(m, job_of(l));
	enginemodel_memory_free(&m->tiers);
	m->tag = 0;
	free(m->progress);
	free(m);
}

static uint32_t blocks_for(const struct enginemodel *m, uint64_t tokens)
{
	return (uint32_t)((tokens + m->cfg.block_tokens - 1) / m->cfg.block_tokens);
}

CGN_RC enginemodel_submit(struct enginemodel *m, const struct enginemodel_job_spec *spec,
	struct enginemodel_job **out)
{
	CGN_LIVE(m, MODEL_TAG);
	CGN_MUST(spec->prompt_tokens > 0 && spec->answer_tokens > 0);
	uint64_t tokens = (uint64_t)spec->prompt_tokens + spec->answer_tokens;
	if (tokens > (uint64_t)m->cfg.kv_blocks * m->cfg.block_tokens)
		return CGN_RC_OF(CGN_TOO_LARGE);
	if (m->n_waiting >= m->cfg.max_queue)
		return CGN_RC_OF(CGN_OVERLOADED);
	struct enginemodel_job *j = calloc(1, sizeof *j + spec->n_hashes * sizeof j->hashes[0]);
	if (j == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	j->tag = JOB_TAG;
	j->user = spec->user;
	j->prompt_tokens = spec->prompt_tokens;
	j->answer_tokens = spec->answer_tokens;
	j->cap_blocks = blocks_for(m, tokens);
	j->n_hashes = spec->n_hashes;
	j->handed = spec->handed < spec->prompt_tokens ? spec->handed : spec->prompt_tokens - 1;
	if (spec->n_hashes > 0)
		memcpy(j->hashes, spec->hashes, spec->n_hashes * sizeof j->hashes[0]);
	j->blocks = malloc(j->cap_blocks * sizeof *j->blocks);
	if (j->blocks == NULL) {
		free(j);
		return CGN_RC_OF(CGN_NO_MEMORY);
	}
	if (spec->contents != NULL) {
		j->contents = *spec->contents;
		*spec->contents = NULL;
	}
	cgn_list_push(&m->waiting, &j->link);
	m->n_waiting++;
	*out = j;
	return CGN_OK;
}

void enginemodel_abort(struct enginemodel *m, struct enginemodel_job **take)
{
	CGN_LIVE(m, MODEL_TAG);
	job_free(m, *take);
	*take = NULL;
	m->stats.aborted++;
}

void enginemodel_hold(struct enginemodel *m, struct enginemodel_job *job)
{
	CGN_LIVE(m, MODEL_TAG);
	CGN_LIVE(job, JOB_TAG);
	job->held = true;
}

static uint32_t job_tokens(const struct enginemodel_job *j)
{
	return j->prompt_tokens + j->given;
}

/* Take blocks for the job's first |tokens| tokens; false when the cache has no room. */
static bool job_reserve(struct enginemodel *m, struct enginemodel_job *j, uint32_t tokens)
{
	uint32_t want = blocks_for(m, tokens);
	CGN_MUST(want <= j->cap_blocks);
	while (j->n_blocks < want) {
		uint32_t block = enginemodel_blocks_take(m->blocks);
		if (block == ENGINEMODEL_BLOCK_NONE)
			return false;
		j->blocks[j->n_blocks++] = block;
	}
	return true;
}

static void job_move(struct enginemodel *m, struct enginemodel_job *j, enum job_state to)
{
	CGN_MUST(j->state != to);
	cgn_list_drop(&j->link);
	j->state = to;
	if (to == JOB_RUNNING) {
		cgn_list_push(&m->running, &j->link);
		m->n_waiting--;
		m->n_running++;
		return;
	}
	cgn_list_push_front(&m->waiting, &j->link); /* A preempted job came before all waiting jobs. */
	m->n_running--;
	m->n_waiting++;
}

static void job_preempt(struct enginemodel *m, struct enginemodel_job *j)
{
	job_give_back(m, j);
	j->computed = 0;
	j->handed = 0;
	j->chunk = 0;
	job_move(m, j, JOB_WAITING);
	m->stats.preempted++;
}

/* Put |hits| cached blocks, from any tier, at the front of the job's blocks. */
static void job_fetch(struct enginemodel *m, struct enginemodel_job *j, uint32_t hits)
{
	uint32_t restored[ENGINEMODEL_TIER_COUNT] = {0};
	enginemodel_memory_fetch(m->tiers, &(struct enginemodel_run){j->hashes, j->contents, 0, hits},
		j->blocks, restored);
	j->n_blocks = hits;
	for (enum enginemodel_tier t = ENGINEMODEL_TIER_CPU; t < ENGINEMODEL_TIER_COUNT; t++) {
		m->stats.restored[t] += restored[t];
		m->restoring += restored[t] * m->cfg.restore[t];
	}
}

/* Cache the blocks that became full: those behind the first |before| computed tokens. */
static void job_publish(struct enginemodel *m, struct enginemodel_job *j, uint32_t before)
{
	uint32_t full = j->computed / m->cfg.block_tokens;
	full = full < j->n_hashes ? full : j->n_hashes;
	uint32_t from = before / m->cfg.block_tokens;
	if (from < full)
		enginemodel_memory_publish(m->tiers,
			&(struct enginemodel_run){j->hashes, j->contents, from, full - from},
			j->blocks + from);
}

/* Admit the job at the front of the queue if its blocks are certain to fit: cached blocks first, then room
 * for the other tokens. The last token is always computed, because the next token is drawn from its
 * logits. */
static bool job_admit(struct enginemodel *m, struct enginemodel_job *j)
{
	uint32_t most = (job_tokens(j) - 1) / m->cfg.block_tokens;
	struct enginemodel_match match =
		enginemodel_memory_match(m->tiers, j->hashes, most < j->n_hashes ? most : j->n_hashes);
	uint32_t hits = match.found;
	uint32_t room = enginemodel_blocks_total(m->blocks) - enginemodel_blocks_used(m->blocks);
	if (blocks_for(m, job_tokens(j)) - match.on_gpu + match.unused > room)
		return false;
	job_fetch(m, j, hits);
	CGN_MUST(job_reserve(m, j, job_tokens(j)));
	j->computed = hits * m->cfg.block_tokens;
	if (!j->seen) {
		j->cached = j->computed;
		m->stats.prefix_queried += j->prompt_tokens;
		m->stats.prefix_hit += j->computed;
	}
	j->seen = true;
	if (j->handed > j->computed) {
		uint32_t before = j->computed;
		j->computed = j->handed;
		job_publish(m, j, before);
	}
	job_move(m, j, JOB_RUNNING);
	return true;
}

struct step_load {
	uint32_t budget, decodes, prefill;
	/* Tokens whose KV is read for decodes and for prompts; pairs of a computed prompt token and one before it. */
	double decode_context, prompt_context, pairs;
};

static void load_job(struct step_load *load, struct enginemodel_job *j)
{
	uint32_t need = job_tokens(j) - j->computed;
	j->chunk = need < load->budget ? need : load->budget;
	load->budget -= j->chunk;
	if (j->chunk == 0)
		return;
	if (need == 1 && (j->given > 0 || j->handed > 0)) {
		load->decodes++;
		load->decode_context += job_tokens(j);
		return;
	}
	load->prefill += j->chunk;
	load->prompt_context += j->computed;
	load->pairs += (double)j->chunk * (j->computed + j->chunk / 2.0);
}

/* Give |j| its share of the step. When memory is short, the job that came last is preempted; false when that
 * job is
 * |j|. */
static bool load_running(struct enginemodel *m, struct step_load *load, struct enginemodel_job *j,
	bool *preempted)
{
	while (!job_reserve(m, j, job_tokens(j))) {
		struct enginemodel_job *victim = job_of(m->running.prev);
		*preempted = true;
		bool self = victim == j;
		job_preempt(m, victim);
		if (self)
			return false;
	}
	load_job(load, j);
	return true;
}

/* Time of |tokens| at the rate of prompts. */
static double tokens_ns(const struct enginemodel *m, double tokens)
{
	return m->cfg.prefill_tokens_per_s > 0 ? m->prefill_times * tokens * 1e9 / m->cfg.prefill_tokens_per_s
					       : 0;
}

/* Time to read the weights, in which up to |tokens| are computed. */
static double weights_ns(const struct enginemodel *m, double tokens)
{
	double read = m->decode_times * (double)m->cfg.decode, computed = tokens_ns(m, tokens);
	return computed > read ? computed : read;
}

static double decode_ns(const struct enginemodel *m, const struct step_load *load)
{
	if (load->decodes == 0)
		return 0;
	double step = m->decode_times * (double)m->cfg.decode,
	       weights = m->cfg.terms.overlaps ? weights_ns(m, load->decodes) : step;
	return weights + step * m->cfg.batch_effect * (load->decodes - 1) +
		m->decode_times * m->cfg.terms.context_ns * load->decode_context;
}

static double prefill_ns(const struct enginemodel *m, const struct step_load *load)
{
	if (load->prefill == 0)
		return 0;
	double linear = tokens_ns(m, load->prefill);
	if (m->cfg.terms.overlaps)
		linear = weights_ns(m, load->prefill + load->decodes) -
			(load->decodes > 0 ? weights_ns(m, load->decodes) : 0);
	return linear + m->prefill_times * m->cfg.terms.pair_ns * load->pairs +
		m->decode_times * m->cfg.terms.context_ns * load->prompt_context;
}

/* Return the time in which the weights are read for decodes, while prompts are computed. */
static double hidden_ns(const struct enginemodel *m, const struct step_load *load)
{
	if (!m->cfg.terms.overlaps || load->decodes == 0)
		return 0;
	double prompts = tokens_ns(m, load->prefill), read = weights_ns(m, load->decodes);
	return prompts < read ? prompts : read;
}

static struct enginemodel_step_parts step_split(const struct enginemodel *m, const struct step_load *load)
{
	double hidden = hidden_ns(m, load);
	return (struct enginemodel_step_parts){.prefill = (cgn_nsec)(prefill_ns(m, load) + hidden),
		.decode = (cgn_nsec)(decode_ns(m, load) - hidden),
		.decodes = load->decodes};
}

static cgn_nsec step_length(const struct enginemodel *m, const struct step_load *load)
{
	if (m->cfg.fixed_step != 0)
		return m->cfg.fixed_step;
	double ns = decode_ns(m, load) + prefill_ns(m, load);
	return ns < 1 ? 1 : (cgn_nsec)ns;
}

static void step_begin(struct enginemodel *m, cgn_nsec start)
{
	struct step_load load = {.budget = m->cfg.step_tokens};
	bool preempted = false;
	cgn_list_each_safe (l, &m->running) {
		/* The next sequence of the iterator may be preempted meanwhile. Victims come from the tail,
		 * so |l| was the last one then. */
		struct enginemodel_job *j = job_of(l);
		j->chunk = 0;
		if (!j->held && !load_running(m, &load, j, &preempted))
			break;
		l_next = l->next;
	}
	while (!preempted && load.budget > 0 && m->n_running < m->cfg.max_batch && m->n_waiting > 0) {
		struct enginemodel_job *j = job_of(m->waiting.next);
		if (!job_admit(m, j))
			break;
		if (!j->held)
			load_job(&load, j);
	}
	bool any = load.decodes > 0 || load.prefill > 0;
	m->step_end = any ? start + step_length(m, &load) + m->restoring : 0;
	m->parts = any ? step_split(m, &load) : (struct enginemodel_step_parts){0};
	m->restoring = 0;
	m->stats.steps += any;
}

static void job_advance(struct enginemodel *m, struct enginemodel_job *j, struct enginemodel_orders *out)
{
	uint32_t before = j->computed;
	j->computed += j->chunk;
	j->chunk = 0;
	job_publish(m, j, before);
	if (j->computed < job_tokens(j))
		return;
	j->given++;
	m->stats.answer_tokens++;
	if (j->given == 1)
		m->stats.prompt_tokens += j->prompt_tokens;
	bool finished = j->given == j->answer_tokens;
	m->progress[out->n_progress++] = (struct enginemodel_progress){.user = j->user,
		.given = j->given,
		.cached = j->cached,
		.finished = finished};
	if (!finished)
		return;
	m->stats.finished++;
	job_free(m, j);
}

void enginemodel_step(struct enginemodel *m, cgn_nsec now, struct enginemodel_orders *out)
{
	CGN_LIVE(m, MODEL_TAG);
	*out = (struct enginemodel_orders){.progress = m->progress};
	cgn_nsec start = now;
	if (m->step_end != 0 && now >= m->step_end) {
		start = m->step_end; /* A late caller does not slow the simulated device. */
		m->step_end = 0;
		cgn_list_each_safe (l, &m->running) {
			if (job_of(l)->chunk > 0)
				job_advance(m, job_of(l), out);
		}
	}
	if (m->step_end == 0)
		step_begin(m, start);
	out->wake_at = m->step_end;
}

bool enginemodel_reset(struct enginemodel *m, bool even_running, bool silently)
{
	CGN_LIVE(m, MODEL_TAG);
	if (enginemodel_blocks_used(m->blocks) > 0 && !even_running)
		return false;
	while (m->n_running > 0)
		job_preempt(m, job_of(m->running.prev));
	enginemodel_memory_clear(m->tiers, silently);
	return true;
}

uint32_t enginemodel_fill(struct enginemodel *m, const struct enginemodel_run *run)
{
	CGN_LIVE(m, MODEL_TAG);
	uint32_t n = 0, all = run->from + run->n;
	uint32_t *blocks = calloc(all > 0 ? all : 1, sizeof *blocks);
	if (blocks == NULL)
		return 0;
	for (; n < all; n++) {
		blocks[n] = enginemodel_blocks_find(m->blocks, run->hashes[n]);
		if (blocks[n] == ENGINEMODEL_BLOCK_NONE && n >= run->from)
			blocks[n] = enginemodel_blocks_take(m->blocks);
		if (blocks[n] == ENGINEMODEL_BLOCK_NONE && n >= run->from)
			break;
	}
	if (n > run->from)
		enginemodel_memory_publish(m->tiers,
			&(struct enginemodel_run){run->hashes, run->contents, run->from, n - run->from},
			blocks + run->from);
	for (uint32_t i = n; i-- > 0;) {
		if (blocks[i] != ENGINEMODEL_BLOCK_NONE)
			enginemodel_blocks_release(m->blocks, blocks[i]);
	}
	free(blocks);
	return n > run->from ? n - run->from : 0;
}

void enginemodel_slow(struct enginemodel *m, double decode, double prefill)
{
	CGN_LIVE(m, MODEL_TAG);
	m->decode_times = decode;
	m->prefill_times = prefill;
}

void enginemodel_delay(struct enginemodel *m, cgn_nsec by)
{
	CGN_LIVE(m, MODEL_TAG);
	m->restoring += by;
}

struct enginemodel_memory *enginemodel_memory_of(struct enginemodel *m)
{
	CGN_LIVE(m, MODEL_TAG);
	return m->tiers;
}

struct enginemodel_stats enginemodel_stats(const struct enginemodel *m)
{
	CGN_LIVE(m, MODEL_TAG);
	struct enginemodel_stats s = m->stats;
	s.running = m->n_running;
	s.waiting = m->n_waiting;
	s.kv_used = enginemodel_blocks_used(m->blocks);
	s.kv_total = enginemodel_blocks_total(m->blocks);
	s.kv_known = enginemodel_blocks_known(m->blocks);
	for (enum enginemodel_tier t = ENGINEMODEL_TIER_CPU; t < ENGINEMODEL_TIER_COUNT; t++)
		s.lower_known[t] = enginemodel_memory_known(m->tiers, t);
	return s;
}

struct enginemodel_step_parts enginemodel_step_parts(const struct enginemodel *m)
{
	CGN_LIVE(m, MODEL_TAG);
	return m->parts;
}

bool enginemodel_sound(const struct enginemodel *m)
{
	uint32_t running = 0, waiting = 0;
	bool held_by_waiting = false;
	cgn_list_each (l, &m->running)
		running++;
	cgn_list_each (l, &m->waiting) {
		waiting++;
		held_by_waiting |= job_of(l)->n_blocks > 0;
	}
	return !held_by_waiting && running == m->n_running && waiting == m->n_waiting &&
		running <= m->cfg.max_batch && enginemodel_memory_sound(m->tiers);
}
