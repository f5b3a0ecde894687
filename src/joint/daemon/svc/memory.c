/* SPDX-License-Identifier: Apache-2.0 */
/* memory: how the allocator treats free memory. */
#include <malloc.h>

#include "joint/daemon/svc/svc_priv.h"

/* Blocks of this size and more are pages of their own. glibc raises the threshold to 32 MiB when such a block
 * is freed, unless it is set; bodies then lie in the heaps of the threads, which keep the memory of their
 * highest use. */
#define OWN_PAGES (128 * 1024)
/* Free memory at the end of a heap beyond this is given back at once. */
#define HEAP_SLACK (1024 * 1024)
/* Free memory between blocks that are in use is given back when it has grown by this much. */
#define GROWN_BYTES ((uint64_t)4 << 20)
#define LOOK_EVERY  (5 * CGN_SEC)

/* Bytes that are given back count as free too: compare with the free bytes after the last time. */
static void on_time(struct cgn_timer *t)
{
	struct svc_memory *m = CGN_CONTAINER(t, struct svc_memory, timer);
	uint64_t now = mallinfo2().fordblks;
	if (now < m->freed)
		m->freed = now; /* Some of it is in use again. */
	if (now - m->freed >= GROWN_BYTES) {
		(void)malloc_trim(0);
		m->freed = mallinfo2().fordblks;
	}
	cgn_timer_set(t, LOOK_EVERY);
}

void svc_memory_init(struct svc_memory *m, struct cgn_loop *l)
{
	*m = (struct svc_memory){.freed = 0};
	cgn_timer_init(&m->timer, l, on_time);
}

void svc_memory_start(struct svc_memory *m)
{
	(void)mallopt(M_MMAP_THRESHOLD, OWN_PAGES);
	(void)mallopt(M_TRIM_THRESHOLD, HEAP_SLACK);
	cgn_timer_set(&m->timer, LOOK_EVERY);
}

void svc_memory_fini(struct svc_memory *m)
{
	cgn_timer_cancel(&m->timer);
}
