/* SPDX-License-Identifier: Apache-2.0 */
/* quote: ask a gateway what a chat with a prompt would take. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json/json.h"
#include "ctl/ctl.h"
#include "io/os/disk/disk.h"
#include "joint/ctl/client/client.h"
#include "joint/ctl/client/origin.h"

#define PROMPT_MAX ((size_t)64 << 20)

static const struct {
	const char *member, *unit;
} figures[] = {{"ttft_ms", "ms"}, {"finish_ms", "ms"}, {"cost", NULL}, {"joules", "J"},
	{"completion_tokens", "tokens"}};

static CGN_RC body_write(const struct ctl_args *a, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf prompt = {0};
	struct json_out j = json_out_to(out);
	uint64_t most = 0;
	if (ctl_flag(a, "--model") == NULL || ctl_flag(a, "--prompt-file") == NULL)
		return CGN_FAIL(err, INVALID, "a quote needs --model NAME and --prompt-file FILE");
	CGN_TRY(ctl_flag_u64(a, "--max-tokens", 0, UINT32_MAX, &most, err));
	CGN_TRY(disk_read_file(ctl_flag(a, "--prompt-file"), PROMPT_MAX, &prompt, err));
	json_open(&j, '{');
	json_key_z(&j, "model", ctl_flag(a, "--model"));
	json_key_bool(&j, "stream", !ctl_switch(a, "--no-stream"));
	if (most > 0)
		json_key_u64(&j, "max_tokens", most);
	json_key_open(&j, "messages", '[');
	json_open(&j, '{');
	json_key_z(&j, "role", "user");
	json_key_str(&j, "content", cgn_buf_view(&prompt));
	json_close(&j, '}');
	json_close(&j, ']');
	json_close(&j, '}');
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}

static CGN_RC quote_fetch(const struct ctl_args *a, struct cgn_loop *l, struct cgn_buf *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0}, key = {0};
	const struct tls_cfg tls = {.ca_file = ctl_flag(a, "--ca"), .crl_file = ctl_flag(a, "--crl")};
	struct ctl_origin o;
	CGN_TRY(ctl_crl_check(&tls, err));
	if (ctl_flag(a, "--key-file") != NULL)
		CGN_TRY(ctl_origin_key(ctl_flag(a, "--key-file"), &key, err));
	CGN_TRY(body_write(a, &body, err));
	CGN_TRY(ctl_origin_open(l, ctl_flag(a, "--url"), &tls, 1, &o, err));
	cgn_rc rc = ctl_flag_duration(a, "--timeout", &o.timeout, err);
	if (cgn_ok(rc))
		rc = ctl_origin_post(l, &o, "/v1/quote", key.n > 0 ? key.p : NULL, cgn_buf_view(&body), out,
			err);
	ctl_origin_close(&o);
	return rc;
}

static void row_put(struct ctl_table *t, const char *name, const char *unit, struct json_val v)
{
	static const char *const ends[] = {"low", "expected", "high"};
	ctl_table_cell(t, "%s", name);
	for (size_t i = 0; i < CGN_COUNT(ends); i++)
		ctl_table_cell(t, "%.4g", json_get_f64(v, ends[i], 0));
	ctl_table_cell(t, "%s", unit);
	ctl_table_cell(t, "%" PRIu64, json_get_u64(v, "samples", 0));
}

static CGN_RC report_table(struct json_val q, struct cgn_err *err)
{
	static const char *const headers[] = {"FIGURE", "LOW", "EXPECTED", "HIGH", "UNIT", "SAMPLES"};
	struct ctl_table t = {0};
	struct cgn_arena arena;
	struct json_val v;
	cgn_arena_init(&arena, 4096);
	(void)printf("%.0f %% of requests are between low and high\n", 100 * json_get_f64(q, "coverage", 0));
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 0 && i != 4);
	ctl_table_cell(&t, "state");
	ctl_table_cell(&t, " ");
	ctl_table_cell(&t, "%.*s", CGN_STR_ARG(json_get_str(q, "state", &arena)));
	for (size_t i = 0; i < 3; i++)
		ctl_table_cell(&t, " ");
	for (size_t i = 0; i < CGN_COUNT(figures); i++) {
		struct cgn_str currency = json_get_str(q, "currency", &arena);
		const char *unit =
			figures[i].unit != NULL ? figures[i].unit : cgn_arena_strz(&arena, currency);
		if (json_get(q, figures[i].member, &v) && v.type == JSON_OBJECT)
			row_put(&t, figures[i].member, unit != NULL ? unit : "", v);
	}
	cgn_rc rc = ctl_table_print(&t, false, err);
	cgn_arena_fini(&arena);
	return rc;
}

static CGN_RC quote_report(const struct ctl_args *a, struct cgn_buf *got, struct cgn_err *err)
{
	struct json_val q;
	if (!cgn_ok(json_parse(cgn_buf_view(got), &q, NULL, NULL)) || q.type != JSON_OBJECT)
		return CGN_FAIL(err, BAD_GATEWAY, "%s answers with something that is not a quote",
			ctl_flag(a, "--url"));
	if (!a->json)
		return report_table(q, err);
	cgn_buf_char(got, '\n');
	return ctl_print(got, err);
}

CGN_RC ctl_quote(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf got = {0};
	struct cgn_loop *l = NULL;
	CGN_TRY(cgn_loop_new(&l, err));
	cgn_rc rc = quote_fetch(a, l, &got, err);
	cgn_loop_close(&l);
	CGN_TRY(rc);
	return quote_report(a, &got, err);
}
