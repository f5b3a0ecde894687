/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz slots: any body is left unchanged or gets a slot and stays JSON; any value is an entry or a link that
 * is written back identically, or is refused. The first byte chooses. */
#include "base/json/json.h"
#include "policy/kv/slots/body.h"
#include "policy/kv/slots/entry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool is_json(const struct cgn_buf *b)
{
	struct json_val doc;
	return cgn_ok(json_parse(cgn_buf_view(b), &doc, NULL, NULL));
}

static void fuzz_body(struct cgn_str text)
{
	char insert[SLOT_BODY_INSERT];
	struct cgn_str path = CGN_STR("/v1/completions");
	struct cgn_buf out = {0};
	struct slot_body b = slot_body_read(path, text);
	if (!b.placeable)
		return;
	cgn_buf_add(&out, text.p, b.at);
	cgn_buf_add(&out, insert, slot_body_insert(&b, 4294967294U, insert));
	cgn_buf_add(&out, text.p + b.at, text.n - b.at);
	/* The result must be JSON, and a second insertion must be refused. */
	CGN_MUST(is_json(&out) && !slot_body_read(path, cgn_buf_view(&out)).placeable);
	out.n = 0;
	slot_body_prefill(path, text, 1, true, &out);
	CGN_MUST(is_json(&out));
	cgn_buf_fini(&out);
}

static void fuzz_entry(struct cgn_str text)
{
	static uint64_t words[SLOT_ENTRY_MAX_BYTES / 8];
	struct cgn_buf out = {0};
	struct slot_entry c;
	if (text.n > SLOT_ENTRY_MAX_BYTES || !cgn_ok(slot_entry_read(text, words, &c, NULL)))
		return;
	slot_entry_write(&c, &out);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&out), text));
	cgn_buf_fini(&out);
}

static void fuzz_link(struct cgn_str text)
{
	uint8_t bytes[SLOT_LINK_BYTES];
	struct slot_link l;
	if (!cgn_ok(slot_link_read(text, &l, NULL)))
		return;
	slot_link_write(&l, bytes);
	CGN_MUST(cgn_str_eq((struct cgn_str){(const char *)bytes, sizeof bytes}, text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 1)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	if (data[0] % 3 == 0)
		fuzz_body(text);
	else if (data[0] % 3 == 1)
		fuzz_entry(text);
	else
		fuzz_link(text);
	return 0;
}
