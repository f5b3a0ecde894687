/* SPDX-License-Identifier: Apache-2.0 */
/* bench ssd_admission: what each setting of kv.ssd_admission finds and writes. Replays a trace through a RAM tier
 * (policy/kv/evict) and an SSD tier as joint/kv/kvdisk keeps it: 16 files, the oldest is removed as a whole, blocks in
 * it that were read since they were written are written again, at most half a file.
 *
 *     bench_ssd_admission [--ram BLOCKS] [--ssd BLOCKS] [--per-day WRITES] [--times N] TRACE.jsonl
 *     bench_ssd_admission --generate KIND --rate R --requests N
 *
 * --per-day: drive writes of the SSD tier a day, for auto; 0: no limit. --times: the trace runs N times as slow, so
 * that an hour covers N hours of the budget. A request finds the blocks at the beginning of its prompt up to the
 * first one that is in neither tier; the others are computed and put. Prints one JSON object. */
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mix/mix.h"
#include "io/os/disk/disk.h"
#include "lab/trace/trace.h"
#include "lab/workload/workload.h"
#include "policy/kv/evict/evict.h"
#include "policy/kv/wear/wear.h"

#define FILES 16U
#define BLOCK ((uint64_t)1 << 20)

enum setting { ALL, REUSED, AUTO, OFF, SETTINGS };
static const char *const setting_names[] = {"all", "reused", "auto", "off"};

struct item {
	struct evict_node node;
	uint64_t hash;
	bool in_ram, on_ssd, reread;
	uint8_t class;
	uint32_t file;
};
/* A slab file: the blocks in it, in the order of writing. */
struct file {
	struct item **list;
	uint32_t n;
};
struct tiers {
	enum setting setting;
	struct item *items;
	struct evict ram;
	uint64_t ram_blocks, file_blocks;
	struct file files[FILES];
	uint32_t oldest, newest, n_files; /* numbers of files, modulo FILES */
	struct wear wear;
	cgn_nsec now;
	uint64_t blocks, ram_hits, ssd_hits, written, carried;
};

static uint64_t hash_of(struct evict_node *n)
{
	return CGN_CONTAINER(n, struct item, node)->hash;
}

static void ssd_append(struct tiers *t, struct item *it)
{
	struct file *f = &t->files[t->newest % FILES];
	it->on_ssd = true;
	it->reread = false;
	it->file = t->newest;
	f->list[f->n++] = it;
	t->written++;
	wear_spent(&t->wear, BLOCK);
}

/* Begin a file; when there is one too many, the oldest goes. The last file but one is the reserve. */
static void ssd_next_file(struct tiers *t)
{
	if (t->n_files > 0)
		t->newest++;
	t->n_files++;
	t->files[t->newest % FILES].n = 0;
	if (t->n_files < FILES)
		return;
	struct file *f = &t->files[t->oldest % FILES];
	uint64_t kept = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		struct item *it = f->list[i];
		if (!it->on_ssd || it->file != t->oldest)
			continue;
		it->on_ssd = false;
		bool carry = t->setting != OFF && it->reread && kept < t->file_blocks / 2;
		if (!carry)
			continue;
		kept++;
		t->carried++;
		ssd_append(t, it);
	}
	t->oldest++;
	t->n_files--;
}

static bool ssd_room(const struct tiers *t)
{
	return t->n_files + 2 < FILES;
}

static void ssd_write(struct tiers *t, struct item *it, enum wear_class c)
{
	if (it->on_ssd)
		return;
	if (t->n_files == 0 || t->files[t->newest % FILES].n >= t->file_blocks)
		ssd_next_file(t);
	it->class = (uint8_t)c;
	ssd_append(t, it);
	wear_wrote(&t->wear, c, BLOCK);
}

/* Write a block that was put or used, if the setting says so. */
static void write_if_worth(struct tiers *t, struct item *it)
{
	enum wear_class c = wear_class_of(evict_worth(&it->node));
	if (it->on_ssd || t->setting == OFF)
		return;
	if (t->setting == ALL || (t->setting == REUSED && c != WEAR_ONCE))
		ssd_write(t, it, c);
	else if (t->setting == AUTO && wear_admits(&t->wear, c, BLOCK, ssd_room(t), t->now))
		ssd_write(t, it, c);
}

static void ram_add(struct tiers *t, struct item *it)
{
	if (evict_count(&t->ram) >= t->ram_blocks) {
		struct item *out = CGN_CONTAINER(evict_victim(&t->ram, NULL, NULL), struct item, node);
		out->in_ram = false;
	}
	it->in_ram = true;
	evict_add(&t->ram, &it->node, (uint32_t)BLOCK);
}

static bool find_block(struct tiers *t, struct item *it)
{
	if (it->in_ram) {
		t->ram_hits++;
		evict_touch(&it->node);
		write_if_worth(t, it);
		return true;
	}
	if (!it->on_ssd)
		return false;
	t->ssd_hits++;
	it->reread = true;
	wear_read(&t->wear, it->class, BLOCK);
	ram_add(t, it);
	return true;
}

static void run_request(struct tiers *t, const struct trace *tr, const struct trace_request *r,
	struct trace_numbers *numbers)
{
	uint32_t found = 0;
	t->blocks += r->n;
	while (found < r->n && find_block(t, &t->items[trace_number(numbers, trace_ids(tr, r)[found])]))
		found++;
	for (uint32_t i = r->n; i > found; i--) { /* the last block first, as evict.h asks for */
		struct item *it = &t->items[trace_number(numbers, trace_ids(tr, r)[i - 1])];
		if (it->in_ram) {
			evict_touch(&it->node);
		} else {
			ram_add(t, it);
			write_if_worth(t, it);
		}
	}
}

struct options {
	uint64_t ram, ssd, requests;
	double per_day, rate, times;
	const char *generate, *file;
};

static void run_setting(const struct trace *tr, const struct options *o, enum setting s, struct json_out *out)
{
	struct tiers t = {.setting = s, .ram_blocks = o->ram, .file_blocks = o->ssd / FILES};
	struct trace_numbers numbers = {0};
	for (size_t i = 0; i < tr->n_ids; i++)
		(void)trace_number(&numbers, tr->ids[i]);
	t.items = calloc(numbers.n, sizeof *t.items);
	for (size_t i = 0; i < numbers.n; i++)
		t.items[i].hash = trace_digest(numbers.key[i]);
	for (uint32_t i = 0; i < FILES; i++)
		t.files[i].list = calloc(2 * t.file_blocks + 1, sizeof *t.files[i].list);
	evict_init(&t.ram, &(struct evict_cfg){.bytes = o->ram * BLOCK, .hash_of = hash_of});
	wear_init(&t.wear, o->ssd * BLOCK, (uint64_t)((double)(o->ssd * BLOCK) * o->per_day), 0);
	for (size_t i = 0; i < tr->n; i++) {
		t.now = (cgn_nsec)((double)tr->requests[i].at * o->times);
		run_request(&t, tr, &tr->requests[i], &numbers);
	}
	json_open(out, '{');
	json_key_z(out, "setting", setting_names[s]);
	json_key_u64(out, "blocks", t.blocks);
	json_key_u64(out, "ram_hits", t.ram_hits);
	json_key_u64(out, "ssd_hits", t.ssd_hits);
	json_key_u64(out, "written", t.written);
	json_key_u64(out, "carried", t.carried);
	json_key_f64(out, "hit_ratio", (double)(t.ram_hits + t.ssd_hits) / (double)t.blocks);
	json_close(out, '}');
	evict_fini(&t.ram);
	for (uint32_t i = 0; i < FILES; i++)
		free(t.files[i].list);
	free(t.items);
	trace_numbers_fini(&numbers);
}

static void options_read(struct options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
		i += strncmp(name, "--", 2) == 0;
		if (strcmp(name, "--ram") == 0)
			o->ram = strtoull(value, NULL, 10);
		else if (strcmp(name, "--ssd") == 0)
			o->ssd = strtoull(value, NULL, 10);
		else if (strcmp(name, "--requests") == 0)
			o->requests = strtoull(value, NULL, 10);
		else if (strcmp(name, "--per-day") == 0)
			o->per_day = strtod(value, NULL);
		else if (strcmp(name, "--rate") == 0)
			o->rate = strtod(value, NULL);
		else if (strcmp(name, "--times") == 0)
			o->times = strtod(value, NULL);
		else if (strcmp(name, "--generate") == 0)
			o->generate = value;
		else
			o->file = name;
	}
}

static CGN_RC trace_load(const struct options *o, struct trace *out, struct cgn_err *err)
{
	struct workload_cfg cfg = {.seed = 7, .requests = o->requests, .rate = o->rate};
	struct cgn_buf text = {0};
	if (o->generate == NULL) {
		if (o->file == NULL)
			return CGN_FAIL(err, INVALID, "name a trace, or --generate KIND");
		CGN_TRY(disk_read_file(o->file, (size_t)1 << 30, &text, err));
		cgn_rc rc = trace_parse(cgn_buf_view(&text), o->file, 0, 0, out, err);
		cgn_buf_fini(&text);
		return rc;
	}
	if (!workload_find(cgn_str_of(o->generate), &cfg.kind))
		return CGN_FAIL(err, INVALID, "no kind of workload is called %s", o->generate);
	return workload_make(&cfg, out, err);
}

int main(int argc, char **argv)
{
	struct options o =
		{.ram = 1000, .ssd = 20000, .requests = 12000, .per_day = 1, .rate = 10, .times = 1};
	struct trace tr = {0};
	struct cgn_err err = {0};
	struct cgn_buf b = {0};
	options_read(&o, argc, argv);
	if (!cgn_ok(trace_load(&o, &tr, &err)) || o.ssd < FILES) {
		(void)fprintf(stderr, "%s\n", o.ssd < FILES ? "--ssd: at least 16" : err.msg);
		return 2;
	}
	struct json_out out = json_out_to(&b);
	json_open(&out, '{');
	json_key_z(&out, "bench", "ssd admission");
	json_key_z(&out, "trace", o.generate != NULL ? o.generate : o.file);
	json_key_u64(&out, "ram_blocks", o.ram);
	json_key_u64(&out, "ssd_blocks", o.ssd);
	json_key_f64(&out, "writes_per_day", o.per_day);
	json_key_f64(&out, "hours", (double)tr.requests[tr.n - 1].at * o.times / 3600 / (double)CGN_SEC);
	json_key(&out, "results");
	json_open(&out, '[');
	for (enum setting s = 0; s < SETTINGS; s++)
		run_setting(&tr, &o, s, &out);
	json_close(&out, ']');
	json_close(&out, '}');
	(void)printf("%s\n", cgn_buf_z(&b));
	cgn_buf_fini(&b);
	trace_fini(&tr);
	return 0;
}
