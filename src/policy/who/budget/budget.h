/* SPDX-License-Identifier: Apache-2.0 */
/* budget: how much a tenant or a key may use in a minute, a day and a month of the calendar (UTC), in requests,
 * tokens, money and joules. Pure; one thread. What a request may use is reserved before it, and settled after it
 * with what it used. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

struct config;

enum budget_unit { BUDGET_REQUESTS, BUDGET_TOKENS, BUDGET_MONEY, BUDGET_JOULES, BUDGET_UNITS };
enum budget_window { BUDGET_MINUTE, BUDGET_DAY, BUDGET_MONTH, BUDGET_WINDOWS };

/* An amount of a unit is a whole number: of requests, tokens, billionths of the currency, thousandths of a joule. */
#define BUDGET_MONEY_SCALE UINT64_C(1000000000)
#define BUDGET_JOULE_SCALE UINT64_C(1000)
#define BUDGET_PRICE_SCALE \
	UINT64_C(1000000000000) /* A price of one token is in trillionths of the currency. */
#define BUDGET_AMOUNT_MAX UINT64_C(1000000000000000000) /* The largest amount. */
#define BUDGET_CURRENCY   4                             /* "USD" and its end. */
#define BUDGET_MAX        8                             /* Budgets of one subject. */
#define BUDGET_NAME_MAX   71                            /* Length of a subject's name, such as "t:acme". */
#define BUDGET_TEXT_MAX   64                            /* A budget as text, with its end. */

/* Return a sum of prices, in trillionths, as an amount of money: rounded up, at most BUDGET_AMOUNT_MAX. */
__extension__ typedef unsigned __int128 budget_prices;
uint64_t budget_of_prices(budget_prices sum);

struct budget {
	enum budget_unit unit;
	enum budget_window window;
	char currency[BUDGET_CURRENCY]; /* Currency of money; else empty. */
	uint64_t limit;
};
struct budget_set {
	struct budget v[BUDGET_MAX]; /* Each of another unit or window. */
	size_t n;
};
/* Add the budget that |text| names: "AMOUNT UNIT/WINDOW", such as "1000 requests/day", "2M tokens/month",
 * "5.50 USD/day" or "3 kWh/month". AMOUNT is a decimal number with at most 9 decimals, and k, M or G behind
 * it; spaces may be left out. UNIT is requests, tokens, joules, kWh, or the three capitals of a currency;
 * WINDOW is minute, day or month. INVALID: the sentence names the error. */
CGN_RC budget_set_add(struct budget_set *s, struct cgn_str text, struct cgn_err *err);
/* Return the currency of the set's money; NULL: it has none. All money of a set has one currency. */
const char *budget_set_currency(const struct budget_set *s);
/* Write the budget as budget_set_add reads it: "5.5 USD/day". */
void budget_text(const struct budget *b, char out[BUDGET_TEXT_MAX]);
/* Write an amount: "12", "3.5". */
void budget_amount_text(enum budget_unit unit, uint64_t amount, char out[BUDGET_TEXT_MAX]);
const char *budget_unit_text(const struct budget *b); /* "requests", "tokens", "USD", "joules". */
const char *budget_window_text(enum budget_window w); /* "minute", "day", "month". */

/* Return the number of the window that |unix_s| is in, counted from 1970, and the time at which a window ends. */
uint64_t budget_window_at(enum budget_window w, uint64_t unix_s);
uint64_t budget_window_end(enum budget_window w, uint64_t number);

/* ---- accounts ---- */

struct budget_amounts {
	uint64_t v[BUDGET_UNITS];
};
/* Amounts spent in one window, reservations included. */
struct budget_spell {
	uint64_t number; /* Number of the window; 0: none yet. */
	struct budget_amounts spent;
};
/* The account of a subject: its current window first, then others that it was in. A clock that jumps to one
 * of them, back or forward, meets the amounts that were spent there. */
#define BUDGET_SPELLS 3
struct budget_account {
	char name[BUDGET_NAME_MAX + 1];
	struct budget_spell spells[BUDGET_WINDOWS][BUDGET_SPELLS];
	struct budget_amounts
		held; /* Reservations that are not settled; those of this time are in |spells| too. */
};

/* Bring the account to |unix_s|. A new window begins with nothing spent; one that is earlier than all that
 * are known (the clock went back) begins with the amounts of the current one. The earliest known window gives
 * way. */
void budget_turn(struct budget_account *a, uint64_t unix_s);

/* All accounts, found by name. Memory: 464 bytes each and 8 to 32 of the table; at most BUDGET_ACCOUNTS. */
#define BUDGET_ACCOUNTS 65536
struct budget_book;
struct budget_book *budget_book_new(void);
void budget_book_free(struct budget_book **take);
/* Return the account of |name|, or NULL. Borrowed until the next call that takes a non-const book. */
const struct budget_account *budget_book_find(const struct budget_book *b, struct cgn_str name);
size_t budget_book_count(const struct budget_book *b);

/* A reservation. Settle it once. */
struct budget_held {
	uint64_t number[BUDGET_WINDOWS]; /* The windows in which it was made; all 0: nothing is held. */
	struct budget_amounts amounts;
};
struct budget_answer {
	bool granted;
	uint64_t spent;   /* Before this request if it is not granted, else with it. */
	uint64_t ends_at; /* End of the budget's window, seconds since 1970. */
};
/* Reserve |want| in all budgets of |s| or in none; |answers| has |s->n| elements. Each budget grants what fits into
 * it. True: reserved, |*held| is to be settled. BUDGET_ACCOUNTS reached: |*held| is empty and true is
 * returned, so that a full book refuses no request; budget_book_uncounted tells how often. */
bool budget_book_take(struct budget_book *b, struct cgn_str name, const struct budget_set *s, uint64_t unix_s,
	const struct budget_amounts *want, struct budget_answer *answers, struct budget_held *held);
/* Replace the held amounts by |used|, in the windows in which it was reserved; where such a window is
 * forgotten nothing changes. */
void budget_book_settle(struct budget_book *b, struct cgn_str name, const struct budget_held *held,
	const struct budget_amounts *used);
/* Another counter, which several routers share, says that |spent| was spent in the window |number|: take that over. An
 * earlier window than the current one changes only if it is known. */
void budget_book_learn(struct budget_book *b, struct cgn_str name, const struct budget *of, uint64_t number,
	uint64_t spent);
/* Count |used|, of the instant |unix_s|, without a reservation. A window earlier than the current one changes only if it is known. */
void budget_book_spend(struct budget_book *b, struct cgn_str name, uint64_t unix_s,
	const struct budget_amounts *used);
uint64_t budget_book_uncounted(const struct budget_book *b);
/* Return a number that changes with each change of any account. */
uint64_t budget_book_version(const struct budget_book *b);

/* ---- the book as a text ---- */

/* Append the book without the reservations of tenants and keys, which are restored from elsewhere: a line "cognitora-budgets 1", a line for each account, and the line "sum HEX" with BLAKE3 of
 * all before it. */
void budget_book_write(const struct budget_book *b, struct cgn_buf *out);
/* Put the accounts of |text| into |b|, which has none. INVALID: damaged, or of a later format; |b| stays empty. */
CGN_RC budget_book_read(struct budget_book *b, struct cgn_str text, struct cgn_err *err);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC budget_check_config(const struct config *c, struct cgn_err *err);
