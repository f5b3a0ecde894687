/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz sse: the events are the same for any cuts of the stream; the first byte chooses the cuts. */
#include <stdlib.h>

#include "base/core/err.h"
#include "base/sse/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void note_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct cgn_buf *b = arg;
	cgn_buf_char(b, '<');
	cgn_buf_str(b, name);
	cgn_buf_char(b, '|');
	cgn_buf_str(b, data);
	cgn_buf_char(b, '>');
}

static uint64_t scan_stream(struct cgn_str text, size_t step, size_t limit, struct cgn_buf *events)
{
	struct sse_scan s;
	sse_scan_init(&s, limit, note_event, events);
	for (size_t at = 0; at < text.n; at += step) {
		struct cgn_str part = {text.p + at, text.n - at < step ? text.n - at : step};
		char *chunk = cgn_str_dupz(part); /* A block of its own, freed after the call. */
		CGN_MUST(chunk != NULL);
		sse_scan_feed(&s, (struct cgn_str){chunk, part.n});
		free(chunk);
	}
	uint64_t lost = s.lost_events;
	CGN_MUST(s.data.n <= limit);
	sse_scan_fini(&s);
	return lost;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 2)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	struct cgn_buf whole = {0}, parts = {0}, tight = {0};
	CGN_MUST(scan_stream(text, text.n, 1 << 20, &whole) == 0);
	CGN_MUST(scan_stream(text, (size_t)data[0] % 16 + 1, 1 << 20, &parts) == 0);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&parts)));
	(void)scan_stream(text, (size_t)data[0] % 16 + 1, (size_t)data[0] / 16 + 1, &tight);
	cgn_buf_fini(&whole);
	cgn_buf_fini(&parts);
	cgn_buf_fini(&tight);
	return 0;
}
