/* SPDX-License-Identifier: Apache-2.0 */
/* thread: POSIX threads as fibers. A lock's state is kept in the first words of the program's own object, of which an
 * initialiser leaves zeros. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "world_priv.h"

/* ---- threads ---- */

struct start {
	void *(*fn)(void *);
	void *arg;
};

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	(void)attr;
	struct fiber *f = fiber_new(this_proc(), fn, arg);
	*out = f->id;
	return 0;
}

int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result)
{
	struct fiber *f = fiber_of(t);
	f->joiner = world.current;
	while (f->state != FIBER_DEAD)
		(void)fiber_wait(UINT64_MAX);
	if (result != NULL)
		*result = f->result;
	fiber_free(f);
	return 0;
}

int __wrap_pthread_detach(pthread_t t);
int __wrap_pthread_detach(pthread_t t)
{
	fiber_of(t)->detached = true;
	return 0;
}

pthread_t __real_pthread_self(void);
pthread_t __wrap_pthread_self(void);
pthread_t __wrap_pthread_self(void)
{
	return is_simulated() ? (pthread_t)world.current->id : __real_pthread_self();
}

int __wrap_pthread_setname_np(pthread_t t, const char *name);
int __wrap_pthread_setname_np(pthread_t t, const char *name)
{
	struct fiber *f = fiber_of(t);
	(void)snprintf(f->name, sizeof f->name, "%s", name);
	return 0;
}

/* ---- waiting for an object ---- */

/* Fibers that wait for a lock or a condition. Their number is small: a list for all. */
static struct cgn_link parked = {&parked, &parked};

static bool fiber_park(const void *at, uint64_t until)
{
	struct fiber *f = world.current;
	f->at = at;
	cgn_list_push(&parked, &f->park);
	bool woken = fiber_wait(until);
	cgn_list_drop(&f->park);
	return woken;
}

static void fibers_unpark(const void *at, bool all)
{
	cgn_list_each_safe (l, &parked) {
		struct fiber *f = CGN_CONTAINER(l, struct fiber, park);
		if (f->at != at || f->proc != this_proc() || f->state != FIBER_WAITS)
			continue;
		fiber_wake(f);
		if (!all)
			return;
	}
}

/* ---- mutexes ---- */

struct lock {
	struct fiber *owner;
	uint32_t depth, readers;
};

static struct lock *lock_of(void *object)
{
	return object;
}

int __real_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a)
{
	if (!is_simulated())
		return __real_pthread_mutex_init(m, a);
	*lock_of(m) = (struct lock){0};
	return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m)
{
	(void)m;
	return 0;
}

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	if (!is_simulated())
		return __real_pthread_mutex_lock(m);
	struct lock *k = lock_of(m);
	if (world_chance(16))
		fiber_yield(); /* Another thread comes first */
	while (k->owner != NULL && k->owner != world.current)
		(void)fiber_park(m, UINT64_MAX);
	k->owner = world.current;
	k->depth++;
	return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
	struct lock *k = lock_of(m);
	if (k->owner != NULL && k->owner != world.current)
		return EBUSY;
	k->owner = world.current;
	k->depth++;
	return 0;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	if (!is_simulated())
		return __real_pthread_mutex_unlock(m);
	struct lock *k = lock_of(m);
	if (--k->depth > 0)
		return 0;
	k->owner = NULL;
	fibers_unpark(m, false);
	return 0;
}

/* ---- conditions ---- */

int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *a);
int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *a)
{
	(void)a;
	memset(c, 0, sizeof *c);
	return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *c);
int __wrap_pthread_cond_destroy(pthread_cond_t *c)
{
	(void)c;
	return 0;
}

static int cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t until)
{
	(void)__wrap_pthread_mutex_unlock(m);
	bool woken = fiber_park(c, until);
	(void)__wrap_pthread_mutex_lock(m);
	return woken ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	(void)cond_wait(c, m,
		world_chance(32) ? world.now + world_draw(WORLD_MS)
				 : UINT64_MAX); /* Sometimes it wakes without a signal */
	return 0;
}

/* Times near the world's own beginning are of CLOCK_MONOTONIC, others of CLOCK_REALTIME. */
static uint64_t until_of(const struct timespec *ts)
{
	uint64_t at = (uint64_t)ts->tv_sec * WORLD_SEC + (uint64_t)ts->tv_nsec;
	uint64_t wall = world.wall_base + (uint64_t)this_proc()->host->skew;
	return at >= wall / 2 ? at - wall : at;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *ts);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *ts)
{
	return cond_wait(c, m, until_of(ts));
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
	const struct timespec *ts);
int __wrap_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
	const struct timespec *ts)
{
	(void)clock;
	return cond_wait(c, m, until_of(ts));
}

int __wrap_pthread_cond_signal(pthread_cond_t *c);
int __wrap_pthread_cond_signal(pthread_cond_t *c)
{
	fibers_unpark(c, false);
	return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
	fibers_unpark(c, true);
	return 0;
}

/* ---- read-write locks ---- */

int __real_pthread_rwlock_init(pthread_rwlock_t *l, const pthread_rwlockattr_t *a);
int __wrap_pthread_rwlock_init(pthread_rwlock_t *l, const pthread_rwlockattr_t *a);
int __wrap_pthread_rwlock_init(pthread_rwlock_t *l, const pthread_rwlockattr_t *a)
{
	if (!is_simulated())
		return __real_pthread_rwlock_init(l, a);
	*(struct lock *)(void *)l = (struct lock){0};
	return 0;
}

int __wrap_pthread_rwlock_destroy(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_destroy(pthread_rwlock_t *l)
{
	(void)l;
	return 0;
}

int __real_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
	if (!is_simulated())
		return __real_pthread_rwlock_rdlock(l);
	struct lock *k = lock_of(l);
	while (k->owner != NULL)
		(void)fiber_park(l, UINT64_MAX);
	k->readers++;
	return 0;
}

int __real_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
	if (!is_simulated())
		return __real_pthread_rwlock_wrlock(l);
	struct lock *k = lock_of(l);
	while (k->owner != NULL || k->readers > 0)
		(void)fiber_park(l, UINT64_MAX);
	k->owner = world.current;
	return 0;
}

int __wrap_pthread_rwlock_tryrdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_tryrdlock(pthread_rwlock_t *l)
{
	struct lock *k = lock_of(l);
	if (k->owner != NULL)
		return EBUSY;
	k->readers++;
	return 0;
}

int __wrap_pthread_rwlock_trywrlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_trywrlock(pthread_rwlock_t *l)
{
	struct lock *k = lock_of(l);
	if (k->owner != NULL || k->readers > 0)
		return EBUSY;
	k->owner = world.current;
	return 0;
}

int __real_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l)
{
	if (!is_simulated())
		return __real_pthread_rwlock_unlock(l);
	struct lock *k = lock_of(l);
	if (k->owner == world.current)
		k->owner = NULL;
	else
		k->readers--;
	fibers_unpark(l, true);
	return 0;
}

/* ---- once ---- */

enum { ONCE_NEW, ONCE_RUNS, ONCE_DONE };

static void once_run(int *state, void (*fn)(void))
{
	while (*state == ONCE_RUNS)
		(void)fiber_park(state, UINT64_MAX);
	if (*state == ONCE_DONE)
		return;
	*state = ONCE_RUNS;
	fn();
	*state = ONCE_DONE;
	fibers_unpark(state, true);
}

/* The C library's own state of one that has run outside the world is 2, too. */
int __real_pthread_once(pthread_once_t *once, void (*fn)(void));
int __wrap_pthread_once(pthread_once_t *once, void (*fn)(void));
int __wrap_pthread_once(pthread_once_t *once, void (*fn)(void))
{
	if (!is_simulated())
		return __real_pthread_once(once, fn);
	once_run(once, fn);
	return 0;
}

/* C++'s static variables in functions. The first byte says that the variable is there. */
int __real___cxa_guard_acquire(char *guard);
int __wrap___cxa_guard_acquire(char *guard);
int __wrap___cxa_guard_acquire(char *guard)
{
	if (!is_simulated())
		return __real___cxa_guard_acquire(guard);
	while (guard[0] == 0 && guard[1] != 0)
		(void)fiber_park(guard, UINT64_MAX);
	if (guard[0] != 0)
		return 0;
	guard[1] = 1;
	return 1;
}

static void guard_end(char *guard, char state)
{
	guard[0] = state;
	guard[1] = 0;
	fibers_unpark(guard, true);
}

void __real___cxa_guard_release(char *guard);
void __wrap___cxa_guard_release(char *guard);
void __wrap___cxa_guard_release(char *guard)
{
	if (!is_simulated())
		__real___cxa_guard_release(guard);
	else
		guard_end(guard, 1);
}

void __real___cxa_guard_abort(char *guard);
void __wrap___cxa_guard_abort(char *guard);
void __wrap___cxa_guard_abort(char *guard)
{
	if (!is_simulated())
		__real___cxa_guard_abort(guard);
	else
		guard_end(guard, 0);
}

/* ---- values of a thread ---- */

#define KEYS_FIRST 1024U /* Keys of the C library are below */
#define KEYS_MOST  4096U
static void (*destructors[KEYS_MOST])(void *);
static unsigned n_keys;

int __real_pthread_key_create(pthread_key_t *out, void (*destructor)(void *));
int __wrap_pthread_key_create(pthread_key_t *out, void (*destructor)(void *));
int __wrap_pthread_key_create(pthread_key_t *out, void (*destructor)(void *))
{
	if (!is_simulated())
		return __real_pthread_key_create(out, destructor);
	if (n_keys == KEYS_MOST)
		return EAGAIN;
	destructors[n_keys] = destructor;
	*out = KEYS_FIRST + n_keys++;
	return 0;
}

int __wrap_pthread_key_delete(pthread_key_t key);
int __wrap_pthread_key_delete(pthread_key_t key)
{
	if (key >= KEYS_FIRST)
		destructors[key - KEYS_FIRST] = NULL;
	return 0;
}

static struct fiber_value *value_find(pthread_key_t key)
{
	struct fiber *f = world.current;
	for (size_t i = 0; i < CGN_COUNT(f->values); i++)
		if (f->values[i].key == key)
			return &f->values[i];
	return NULL;
}

int __real_pthread_setspecific(pthread_key_t key, const void *value);
int __wrap_pthread_setspecific(pthread_key_t key, const void *value);
int __wrap_pthread_setspecific(pthread_key_t key, const void *value)
{
	if (!is_simulated() || key < KEYS_FIRST)
		return __real_pthread_setspecific(key, value);
	struct fiber_value *v = value_find(key);
	if (v == NULL)
		v = value_find(0);
	if (v == NULL)
		return ENOMEM;
	*v = (struct fiber_value){key, (void *)(uintptr_t)value};
	return 0;
}

void *__real_pthread_getspecific(pthread_key_t key);
void *__wrap_pthread_getspecific(pthread_key_t key);
void *__wrap_pthread_getspecific(pthread_key_t key)
{
	if (!is_simulated() || key < KEYS_FIRST)
		return __real_pthread_getspecific(key);
	struct fiber_value *v = value_find(key);
	return v != NULL ? v->value : NULL;
}

void fiber_values_end(struct fiber *f)
{
	for (size_t i = 0; i < CGN_COUNT(f->values); i++) {
		struct fiber_value v = f->values[i];
		f->values[i] = (struct fiber_value){0};
		if (v.key != 0 && v.value != NULL && destructors[v.key - KEYS_FIRST] != NULL)
			destructors[v.key - KEYS_FIRST](v.value);
	}
}
