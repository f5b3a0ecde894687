/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about the server, which client libraries ask on connect. */
#include <unistd.h>

#include "kvcached/resp/command_priv.h"

static uint64_t keys_of(const struct kvstore_stats *st)
{
	uint64_t ram = st->tier[BLOCK_RAM].blocks, ssd = st->tier[BLOCK_SSD].blocks;
	return ram > ssd ? ram : ssd; /* values on SSD may be in RAM too */
}

enum resp_did resp_dbsize(struct resp_conn *c)
{
	struct kvstore_stats st;
	kvstore_stats(c->port->store, &st);
	resp_int(c, (int64_t)keys_of(&st));
	return RESP_DONE;
}

#define ULL(v) ((unsigned long long)(v))

static void info_text(const struct resp_conn *c, struct cgn_buf *b)
{
	const struct kvcached *d = c->port->worker->daemon;
	struct kvstore_stats st;
	kvstore_stats(c->port->store, &st);
	const struct kvstore_tier_stats *ram = &st.tier[BLOCK_RAM], *ssd = &st.tier[BLOCK_SSD];
	cgn_buf_fmt(b,
		"# Server\r\nredis_version:%s\r\nserver_name:cgn-kvcached\r\nredis_mode:standalone\r\nprocess_id:%d\r\nuptime_in_seconds:%llu\r\n",
		RESP_VERSION, (int)getpid(), ULL(cgn_since(cgn_clock_now(), d->started) / CGN_SEC));
	cgn_buf_fmt(b, "\r\n# Clients\r\nconnected_clients:%u\r\nmaxclients:%u\r\n",
		atomic_load(&c->port->shared->conns), atomic_load(&d->max_connections));
	cgn_buf_fmt(b, "\r\n# Memory\r\nused_memory:%llu\r\nmaxmemory:%llu\r\n", ULL(ram->bytes),
		ULL(ram->budget));
	cgn_buf_fmt(b, "\r\n# Persistence\r\nloading:0\r\n");
	cgn_buf_fmt(b,
		"\r\n# Stats\r\ntotal_commands_processed:%llu\r\nkeyspace_hits:%llu\r\nkeyspace_misses:%llu\r\nevicted_keys:%llu\r\n",
		ULL(atomic_load(&c->port->shared->commands)), ULL(ram->hits + ssd->hits), ULL(st.misses),
		ULL(ram->evictions + ssd->evictions));
	cgn_buf_fmt(b,
		"\r\n# Tiers\r\nram_blocks:%llu\r\nram_bytes:%llu\r\nssd_blocks:%llu\r\nssd_bytes:%llu\r\ncorrupt_blocks:%llu\r\n",
		ULL(ram->blocks), ULL(ram->bytes), ULL(ssd->blocks), ULL(ssd->bytes), ULL(st.corrupt));
	cgn_buf_fmt(b,
		"\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n");
	if (keys_of(&st) > 0)
		cgn_buf_fmt(b, "db0:keys=%llu,expires=0,avg_ttl=0\r\n", ULL(keys_of(&st)));
}

enum resp_did resp_info(struct resp_conn *c)
{
	struct cgn_buf b = {0};
	info_text(c, &b);
	if (c->resp3) {
		resp_fmt(c, "=%zu\r\ntxt:", b.n + 4);
		resp_put(c, b.p, b.n);
		resp_putz(c, "\r\n");
	} else {
		resp_bulk(c, cgn_buf_view(&b));
	}
	cgn_buf_fini(&b);
	return RESP_DONE;
}

/* ---- CONFIG ---- */

struct setting {
	const char *name;
	char value[32];
};

static size_t config_settings(const struct resp_conn *c, struct setting *out)
{
	const struct config *cfg = c->port->worker->daemon->cfg;
	const struct setting all[] = {{"save", ""}, {"appendonly", "no"}, {"databases", "1"},
		{"maxmemory", ""}, {"maxclients", ""}, {"timeout", ""}, {"proto-max-bulk-len", ""},
		{"io-threads", ""}};
	memcpy(out, all, sizeof all);
	(void)snprintf(out[3].value, sizeof out->value, "%llu", ULL(cfg->kv.ram));
	(void)snprintf(out[4].value, sizeof out->value, "%u",
		atomic_load(&c->port->worker->daemon->max_connections));
	(void)snprintf(out[5].value, sizeof out->value, "%llu",
		ULL(atomic_load(&c->port->worker->daemon->resp_idle_timeout) / CGN_SEC));
	(void)snprintf(out[6].value, sizeof out->value, "%llu", ULL(BLOCK_MAX_BYTES));
	(void)snprintf(out[7].value, sizeof out->value, "%zu", c->port->worker->daemon->n_workers);
	return CGN_COUNT(all);
}

static bool is_asked(const struct resp_conn *c, const char *name)
{
	for (size_t i = 2; i < c->cmd.n; i++) {
		char low[64];
		struct cgn_str s = resp_arg(c, i);
		for (size_t j = 0; j < s.n && j < sizeof low; j++)
			low[j] = (char)(s.p[j] >= 'A' && s.p[j] <= 'Z' ? s.p[j] + 32 : s.p[j]);
		if (s.n <= sizeof low && cgn_str_glob((struct cgn_str){low, s.n}, cgn_str_of(name)))
			return true;
	}
	return false;
}

enum resp_did resp_config(struct resp_conn *c)
{
	struct setting all[16];
	size_t n = config_settings(c, all), n_asked = 0;
	if (!resp_arg_is(c, 1, "get") || c->cmd.n < 3) {
		resp_error(c, "ERR only CONFIG GET is here; settings are in cognitora.toml, section [kv]");
		return RESP_DONE;
	}
	for (size_t i = 0; i < n; i++)
		n_asked += is_asked(c, all[i].name);
	resp_map(c, n_asked);
	for (size_t i = 0; i < n; i++) {
		if (!is_asked(c, all[i].name))
			continue;
		resp_bulk(c, cgn_str_of(all[i].name));
		resp_bulk(c, cgn_str_of(all[i].value));
	}
	return RESP_DONE;
}

/* ---- COMMAND ---- */

static void flag_put(struct resp_conn *c, const char *flag)
{
	resp_fmt(c, "+%s\r\n", flag);
}

static void command_put(struct resp_conn *c, const struct respcmd_row *r)
{
	unsigned f = r->flags;
	resp_array(c, 10);
	resp_bulk(c, cgn_str_of(r->name));
	resp_int(c, r->arity);
	resp_array(c,
		(size_t)((f & RESPCMD_READS) != 0) + ((f & RESPCMD_WRITES) != 0) + ((f & RESPCMD_FAST) != 0) +
			((f & RESPCMD_EARLY) != 0));
	if ((f & RESPCMD_READS) != 0)
		flag_put(c, "readonly");
	if ((f & RESPCMD_WRITES) != 0)
		flag_put(c, "write");
	if ((f & RESPCMD_FAST) != 0)
		flag_put(c, "fast");
	if ((f & RESPCMD_EARLY) != 0)
		flag_put(c, "no_auth");
	resp_int(c, r->first);
	resp_int(c, r->last);
	resp_int(c, r->step);
	for (int i = 0; i < 4; i++)
		resp_array(c, 0); /* no categories, tips, key specifications or subcommands */
}

enum resp_did resp_command_info(struct resp_conn *c)
{
	bool all = c->cmd.n == 1 || (c->cmd.n == 2 && resp_arg_is(c, 1, "info"));
	if (all) {
		resp_array(c, RESPCMD_UNKNOWN);
		for (int i = 0; i < RESPCMD_UNKNOWN; i++)
			command_put(c, &respcmd_rows[i]);
	} else if (resp_arg_is(c, 1, "count")) {
		resp_int(c, RESPCMD_UNKNOWN);
	} else if (resp_arg_is(c, 1, "docs")) {
		resp_map(c, 0); /* docs/fleet/kv/README.md documents the commands */
	} else if (resp_arg_is(c, 1, "list")) {
		resp_array(c, RESPCMD_UNKNOWN);
		for (int i = 0; i < RESPCMD_UNKNOWN; i++)
			resp_bulk(c, cgn_str_of(respcmd_rows[i].name));
	} else if (resp_arg_is(c, 1, "info")) {
		resp_array(c, c->cmd.n - 2);
		for (size_t i = 2; i < c->cmd.n; i++) {
			enum respcmd_id id = respcmd_find(resp_arg(c, i));
			if (id == RESPCMD_UNKNOWN)
				resp_putz(c, c->resp3 ? "_\r\n" : "*-1\r\n");
			else
				command_put(c, &respcmd_rows[id]);
		}
	} else {
		resp_error(c, "ERR unknown subcommand. Here are COMMAND, COMMAND COUNT, INFO, LIST, DOCS.");
	}
	return RESP_DONE;
}
