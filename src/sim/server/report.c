/* SPDX-License-Identifier: Apache-2.0 */
/* Names, types, labels and buckets follow vllm/v1/metrics/loggers.py at commit 005a810b (v0.10, before the
 * removal of the gpu_* names). */
#include "sim/server/gather.h"

static void write_family(struct cgn_buf *out, const char *name, const char *type, const char *help)
{
	cgn_buf_fmt(out, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\n", name, help, name, type);
}

struct labels {
	char model[512]; /* Escaped. */
};

/* Append vllm:NAME{engine="R",model_name="M"EXTRA}. */
static void write_sample(struct cgn_buf *out, const struct labels *l, const char *name, unsigned rank,
	const char *extra, double v)
{
	cgn_buf_fmt(out, "vllm:%s{engine=\"%u\",model_name=\"%s\"%s} %.17g\n", name, rank, l->model, extra,
		v);
}

static void escape_label(struct labels *l, const char *z)
{
	size_t at = 0;
	for (; *z != '\0' && at + 3 < sizeof l->model; z++) {
		if (*z == '"' || *z == '\\' || *z == '\n')
			l->model[at++] = '\\';
		l->model[at++] = *z;
		if (*z == '\n')
			l->model[at - 1] = 'n';
	}
	l->model[at] = '\0';
}

enum { GAUGE, COUNTER };
struct row {
	const char *name;
	int type;
	const char *help;
	double (*read)(const struct sim_snapshot *s);
};

#define READ(fn, expr)                                 \
	static double fn(const struct sim_snapshot *s) \
	{                                              \
		return (double)(expr);                 \
	}
READ(running, s->device.running)
READ(waiting, s->device.waiting)
READ(kv_usage, (double)s->device.kv_used / s->device.kv_total)
READ(queried, s->device.prefix_queried)
READ(hit, s->device.prefix_hit)
READ(preempted, s->device.preempted)
READ(prompt, s->device.prompt_tokens)
READ(generated, s->device.answer_tokens)
#undef READ

static const struct row rows[] = {
	{"num_requests_running", GAUGE, "Number of requests in model execution batches.", running},
	{"num_requests_waiting", GAUGE, "Number of requests waiting to be processed.", waiting},
	{"kv_cache_usage_perc", GAUGE, "KV-cache usage. 1 means 100 percent usage.", kv_usage},
	{"prefix_cache_queries_total", COUNTER, "Prefix cache queries, in terms of number of queried tokens.",
		queried},
	{"prefix_cache_hits_total", COUNTER, "Prefix cache hits, in terms of number of cached tokens.", hit},
	{"num_preemptions_total", COUNTER, "Cumulative number of preemption from the engine.", preempted},
	{"prompt_tokens_total", COUNTER, "Number of prefill tokens processed.", prompt},
	{"generation_tokens_total", COUNTER, "Number of generation tokens processed.", generated},
};

static void show_success(const struct labels *l, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out)
{
	static const char *const reasons[SIM_FINISH_COUNT] = {"stop", "length",
		NULL /* vLLM counts a tool call as a stop. */, "abort"};
	write_family(out, "request_success_total", "counter", "Count of successfully processed requests.");
	for (unsigned i = 0; i < n; i++) {
		for (unsigned f = 0; f < SIM_FINISH_COUNT; f++) {
			char extra[64];
			if (reasons[f] == NULL)
				continue;
			uint64_t v = each[i].counts.success[f] +
				(f == SIM_FINISH_STOP ? each[i].counts.success[SIM_FINISH_TOOL] : 0);
			(void)snprintf(extra, sizeof extra, ",finished_reason=\"%s\"", reasons[f]);
			write_sample(out, l, "request_success_total", i, extra, (double)v);
		}
	}
}

static void show_ttft(const struct labels *l, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out)
{
	static const double bounds[SIM_TTFT_N] = SIM_TTFT_BUCKETS;
	write_family(out, "time_to_first_token_seconds", "histogram",
		"Histogram of time to first token in seconds.");
	for (unsigned i = 0; i < n; i++) {
		uint64_t sum = 0;
		char extra[48];
		for (unsigned k = 0; k < SIM_TTFT_N; k++) {
			sum += each[i].counts.ttft_bucket[k];
			(void)snprintf(extra, sizeof extra, ",le=\"%g\"", bounds[k]);
			write_sample(out, l, "time_to_first_token_seconds_bucket", i, extra, (double)sum);
		}
		write_sample(out, l, "time_to_first_token_seconds_bucket", i, ",le=\"+Inf\"",
			(double)each[i].counts.ttft_n);
		write_sample(out, l, "time_to_first_token_seconds_count", i, "",
			(double)each[i].counts.ttft_n);
		write_sample(out, l, "time_to_first_token_seconds_sum", i, "", each[i].counts.ttft_sum);
	}
}

/* Append vLLM's counters of its connector. */
static void show_handoff(const struct labels *l, const struct sim_snapshot *s, uint32_t block_tokens,
	struct cgn_buf *out)
{
	const struct sim_handoff_stats *h = &s->handoff;
	uint64_t taken = h->blocks * block_tokens;
	const struct {
		const char *name;
		uint64_t v;
	} counters[] = {
		{"nixl_num_kv_expired_reqs_total", h->expired},
		{"nixl_num_failed_transfers_total", h->failed},
		{"nixl_bytes_transferred_sum", h->bytes},
		{"nixl_bytes_transferred_count", h->taken},
		{"external_prefix_cache_hits_total", taken},
	};
	for (size_t i = 0; i < CGN_COUNT(counters); i++) {
		write_family(out, counters[i].name, "counter", "As vLLM's connector counts.");
		write_sample(out, l, counters[i].name, 0, "", (double)counters[i].v);
	}
	write_family(out, "prompt_tokens_by_source_total", "counter",
		"Prompt tokens by where their KV came from.");
	write_sample(out, l, "prompt_tokens_by_source_total", 0, ",source=\"local_compute\"",
		(double)(s->device.prompt_tokens - s->device.prefix_hit));
	write_sample(out, l, "prompt_tokens_by_source_total", 0, ",source=\"external_kv_transfer\"",
		(double)taken);
}

void sim_report_metrics(const struct sim_cfg *cfg, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out)
{
	struct labels l;
	escape_label(&l, cfg->models[0]); /* vLLM reports the first served name. */
	for (size_t r = 0; r < CGN_COUNT(rows); r++) {
		write_family(out, rows[r].name, rows[r].type == GAUGE ? "gauge" : "counter", rows[r].help);
		for (unsigned i = 0; i < n; i++)
			write_sample(out, &l, rows[r].name, i, "", rows[r].read(&each[i]));
	}
	if (cfg->handoff.kind != HANDOFF_NONE)
		show_handoff(&l, each, cfg->block_tokens, out);
	show_success(&l, each, n, out);
	show_ttft(&l, each, n, out);
	write_family(out, "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
	for (unsigned i = 0; i < n; i++)
		cgn_buf_fmt(out,
			"vllm:cache_config_info{block_size=\"%u\",enable_prefix_caching=\"%s\",engine=\"%u\",num_gpu_blocks=\"%u\"} 1\n",
			cfg->block_tokens, cfg->no_prefix_caching ? "False" : "True", i, cfg->kv_blocks);
}

void sim_report_recent(const struct sim_worker *w, struct cgn_buf *out)
{
	uint64_t from = w->n_past > SIM_RECENT ? w->n_past - SIM_RECENT : 0;
	for (uint64_t i = w->n_past; i-- > from;) {
		const struct sim_finished_request *p = &w->recent[i % SIM_RECENT];
		cgn_buf_fmt(out,
			"{\"id\":\"%s\",\"worker\":%u,\"end\":\"%s\",\"ended_unix_ms\":%llu,\"after_ms\":%.3f,\"tokens\":%llu},",
			p->id, w->rank, p->how, (unsigned long long)p->ended_ms, (double)p->after_us / 1e3,
			(unsigned long long)p->tokens);
	}
}

static void put_digest(void *arg, uint64_t digest)
{
	cgn_buf_fmt(arg, "\"%016llx\",", (unsigned long long)digest);
}

static void put_publisher(const struct sim_publisher *p, struct cgn_buf *out)
{
	char endpoint[300];
	cgn_buf_fmt(out, ",\"next_batch\":%llu,\"events\":", (unsigned long long)sim_publisher_next(p));
	sim_publisher_endpoint(p, false, endpoint);
	sim_put_string(out, cgn_str_of(endpoint));
	cgn_buf_putz(out, ",\"replay\":");
	sim_publisher_endpoint(p, true, endpoint);
	sim_put_string(out, cgn_str_of(endpoint));
}

/* Append {"rank":0,"next_batch":1,"events":"tcp://...","replay":"","GPU":["..."],"CPU":[],"STORAGE":[]}, */
void sim_report_blocks(const struct sim_worker *w, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "{\"rank\":%u", w->rank);
	if (w->publisher != NULL)
		put_publisher(w->publisher, out);
	for (enum enginemodel_tier t = 0; t < ENGINEMODEL_TIER_COUNT; t++) {
		cgn_buf_fmt(out, ",\"%s\":[", enginemodel_tier_name(t));
		size_t empty = out->n;
		enginemodel_memory_digests(enginemodel_memory_of(w->model), t, put_digest, out);
		if (out->n > empty)
			out->n--; /* Remove the last comma. */
		cgn_buf_char(out, ']');
	}
	cgn_buf_putz(out, "},");
}

static void sum_store(const struct sim_store_stats *s, bool first, struct sim_store_stats *all)
{
	all->ready = s->ready && (first || all->ready);
	all->put += s->put;
	all->had += s->had;
	all->put_failed += s->put_failed;
	all->not_put += s->not_put;
	all->asked += s->asked;
	for (enum block_tier t = 0; t < BLOCK_TIERS; t++)
		all->loaded[t] += s->loaded[t];
	all->wrong += s->wrong;
	all->lost += s->lost;
}

static void put_store(const struct sim_store_stats *s, struct json_out *o)
{
	json_key_open(o, "store", '{');
	json_key_bool(o, "ready", s->ready);
	json_key_u64(o, "put", s->put);
	json_key_u64(o, "had", s->had);
	json_key_u64(o, "put_failed", s->put_failed);
	json_key_u64(o, "not_put", s->not_put);
	json_key_u64(o, "asked", s->asked);
	json_key_u64(o, "loaded_ram", s->loaded[BLOCK_RAM]);
	json_key_u64(o, "loaded_ssd", s->loaded[BLOCK_SSD]);
	json_key_u64(o, "loaded_peer", s->loaded[BLOCK_REMOTE]);
	json_key_u64(o, "wrong", s->wrong);
	json_key_u64(o, "lost", s->lost);
	json_close(o, '}');
}

static void put_handoff(const struct sim_handoff_stats *h, struct json_out *o)
{
	json_key_open(o, "handoff", '{');
	json_key_u64(o, "given", h->given);
	json_key_u64(o, "fetched", h->fetched);
	json_key_u64(o, "expired", h->expired);
	json_key_u64(o, "bytes_sent", h->bytes_sent);
	json_key_u64(o, "taken", h->taken);
	json_key_u64(o, "blocks", h->blocks);
	json_key_u64(o, "bytes", h->bytes);
	json_key_u64(o, "failed", h->failed);
	json_key_u64(o, "recomputed", h->recomputed);
	json_key_z(o, "last_failure", h->last_failure);
	json_close(o, '}');
}

static void sum_up(const struct sim_snapshot *each, unsigned n, struct sim_snapshot *all)
{
	*all = (struct sim_snapshot){0};
	for (unsigned i = 0; i < n; i++) {
		const struct sim_counts *c = &each[i].counts;
		const struct enginemodel_stats *d = &each[i].device;
		all->counts.requests += c->requests;
		all->counts.completed += c->completed;
		all->counts.aborted += c->aborted;
		all->counts.refused += c->refused;
		all->counts.faulted += c->faulted;
		all->counts.open += c->open;
		all->device.running += d->running;
		all->device.waiting += d->waiting;
		all->device.kv_total += d->kv_total;
		all->device.kv_used += d->kv_used;
		all->device.kv_known += d->kv_known;
		all->device.preempted += d->preempted;
		all->device.prompt_tokens += d->prompt_tokens;
		all->device.answer_tokens += d->answer_tokens;
		all->device.prefix_hit += d->prefix_hit;
		for (enum enginemodel_tier t = ENGINEMODEL_TIER_CPU; t < ENGINEMODEL_TIER_COUNT; t++) {
			all->device.lower_known[t] += d->lower_known[t];
			all->device.restored[t] += d->restored[t];
		}
		sum_store(&each[i].store, i == 0, &all->store);
	}
}

static void put_faults(const struct sim_worker *w, struct json_out *o)
{
	json_key_open(o, "faults", '[');
	for (unsigned i = 0; i < w->faults.n; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		sim_fault_print(&w->faults.list[i], &text);
		json_put_str(o, cgn_buf_view(&text));
	}
	json_close(o, ']');
}

void sim_report_state(const struct sim_worker *w, const struct sim_snapshot *each, unsigned n,
	struct cgn_str recent, struct cgn_buf *out)
{
	struct sim_snapshot all;
	sum_up(each, n, &all);
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_u64(&o, "workers", n);
	json_key_u64(&o, "open", all.counts.open);
	json_key_u64(&o, "running", all.device.running);
	json_key_u64(&o, "waiting", all.device.waiting);
	json_key_u64(&o, "requests", all.counts.requests);
	json_key_u64(&o, "completed", all.counts.completed);
	json_key_u64(&o, "aborted", all.counts.aborted);
	json_key_u64(&o, "refused", all.counts.refused);
	json_key_u64(&o, "faulted", all.counts.faulted);
	json_key_u64(&o, "prompt_tokens", all.device.prompt_tokens);
	json_key_u64(&o, "generation_tokens", all.device.answer_tokens);
	json_key_u64(&o, "cached_tokens", all.device.prefix_hit);
	json_key_u64(&o, "preemptions", all.device.preempted);
	json_key_open(&o, "kv", '{');
	json_key_u64(&o, "blocks", all.device.kv_total);
	json_key_u64(&o, "used", all.device.kv_used);
	json_key_u64(&o, "cached", all.device.kv_known);
	json_key_u64(&o, "cpu", all.device.lower_known[ENGINEMODEL_TIER_CPU]);
	json_key_u64(&o, "cpu_restored", all.device.restored[ENGINEMODEL_TIER_CPU]);
	json_key_u64(&o, "disk", all.device.lower_known[ENGINEMODEL_TIER_STORAGE]);
	json_key_u64(&o, "disk_restored", all.device.restored[ENGINEMODEL_TIER_STORAGE]);
	json_close(&o, '}');
	if (sim_has_store(w->cfg))
		put_store(&all.store, &o);
	if (w->cfg->handoff.kind != HANDOFF_NONE)
		put_handoff(&each[0].handoff, &o);
	put_faults(w, &o);
	json_key_open(&o, "recent", '[');
	if (recent.n > 0)
		json_put_raw(&o, recent);
	json_close(&o, ']');
	json_close(&o, '}');
}
