// SPDX-License-Identifier: Apache-2.0

// linear asks a Redis port from many clients at once, and checks with porcupine that the answers have one order:
// each command takes effect at one moment between its request and its answer. A pair of keys is a register of two
// fields: MSETNX and MSET write both, every other command one of them.
//
//	linear -addr 127.0.0.1:7092 -clients 50 -commands 400 -pairs 16 -seed 1
//
// The judge's memory grows with the number of clients that use one pair at a time: keep it below eight.
//
// Exit status: 0 one order exists, 1 none does, 2 the history could not be taken or judged.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// LARGE is more than the port reads as text, so that the value comes to it apart from its command.
const LARGE = 5000

type input struct {
	command string // as sent, without keys and values
	pair    int
	side    int    // which key of the pair; 0 for commands of both
	value   string // of the first key; the second one gets it with "+" behind
}

// state is the value of each key of a pair; "" means that the key is not there.
type state [2]string

const (
	null = "(nil)"
	ok   = "OK"
)

func value(s string) string {
	if s == "" {
		return null
	}
	return s
}

func number(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// next returns what a command answers and leaves, executed alone.
func next(s state, in input) (string, state) {
	old, after := s[in.side], s
	after[in.side] = in.value
	held := old != ""
	keep := func(did bool, yes, no string) (string, state) {
		if did {
			return yes, after
		}
		return no, s
	}
	switch in.command {
	case "GET":
		return value(old), s
	case "STRLEN":
		return strconv.Itoa(len(old)), s
	case "EXISTS":
		return number(held), s
	case "SET", "SET KEEPTTL":
		return ok, after
	case "SET NX":
		return keep(!held, ok, null)
	case "SET XX":
		return keep(held, ok, null)
	case "SET GET", "GETSET":
		return value(old), after
	case "SET NX GET":
		return keep(!held, null, value(old))
	case "SET XX GET":
		return keep(held, value(old), null)
	case "SETNX":
		return keep(!held, "1", "0")
	case "DEL":
		after[in.side] = ""
		return number(held), after
	case "GETDEL":
		after[in.side] = ""
		return value(old), after
	case "EXPIRE -1": // an expiry in the past removes the key
		after[in.side] = ""
		return number(held), after
	case "MSETNX":
		if s[0] != "" || s[1] != "" {
			return "0", s
		}
		return "1", state{in.value, in.value + "+"}
	case "MSET":
		return ok, state{in.value, in.value + "+"}
	}
	panic("no such command: " + in.command)
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		var parts [][]porcupine.Operation
		for _, o := range history {
			for len(parts) <= o.Input.(input).pair {
				parts = append(parts, nil)
			}
			parts[o.Input.(input).pair] = append(parts[o.Input.(input).pair], o)
		}
		return parts
	},
	Init: func() interface{} { return state{} },
	Step: func(s, in, out interface{}) (bool, interface{}) {
		answer, after := next(s.(state), in.(input))
		return answer == out.(string), after
	},
}

var commands = strings.Split("GET,GET,STRLEN,EXISTS,SET,SET KEEPTTL,SET NX,SET XX,SET GET,GETSET,SET NX GET,SET XX GET,"+
	"SETNX,SETNX,DEL,GETDEL,GETDEL,GETDEL,EXPIRE -1,MSETNX,MSETNX,MSET", ",")

// words returns the arguments of a command, in Redis' order.
func words(in input) []string {
	keys := [2]string{fmt.Sprintf("pair%d.a", in.pair), fmt.Sprintf("pair%d.b", in.pair)}
	all := strings.Split(in.command, " ")
	options := all[1:]
	switch all[0] {
	case "MSET", "MSETNX":
		return []string{all[0], keys[0], in.value, keys[1], in.value + "+"}
	case "SET", "SETNX", "GETSET":
		return append([]string{all[0], keys[in.side], in.value}, options...)
	}
	return append([]string{all[0], keys[in.side]}, options...)
}

type client struct {
	c net.Conn
	r *bufio.Reader
}

func (c *client) ask(args []string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c.c, b.String()); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(line[1:], "\r\n")
	switch line[0] {
	case '+', ':':
		return text, nil
	case '_':
		return null, nil
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return null, err
		}
		data := make([]byte, n+2)
		_, err = io.ReadFull(c.r, data)
		return string(data[:n]), err
	}
	return "", fmt.Errorf("%v is answered %q", args[:2], line)
}

func open(addr string) (*client, error) {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, addr)
	return &client{conn, bufio.NewReader(conn)}, err
}

// remove removes what an earlier run left.
func remove(addr string, pairs int) error {
	c, err := open(addr)
	for pair := 0; pair < pairs && err == nil; pair++ {
		for side := 0; side < 2 && err == nil; side++ {
			_, err = c.ask(words(input{command: "DEL", pair: pair, side: side}))
		}
	}
	return err
}

// run sends |n| commands, and returns what was asked and answered when.
func run(addr string, id, n, pairs int, seed int64, began time.Time) ([]porcupine.Operation, error) {
	c, err := open(addr)
	if err != nil {
		return nil, err
	}
	defer c.c.Close()
	dice := rand.New(rand.NewSource(seed<<16 + int64(id)))
	var history []porcupine.Operation
	for i := 0; i < n; i++ {
		in := input{command: commands[dice.Intn(len(commands))], pair: dice.Intn(pairs), side: dice.Intn(2),
			value: fmt.Sprintf("%d.%d", id, i)}
		if strings.HasPrefix(in.command, "MSET") {
			in.side = 0
		}
		if dice.Intn(8) == 0 {
			in.value += strings.Repeat(".", LARGE)
		}
		call := time.Since(began)
		answer, err := c.ask(words(in))
		if err != nil {
			return nil, fmt.Errorf("client %d, %s: %w", id, in.command, err)
		}
		history = append(history, porcupine.Operation{ClientId: id, Input: in, Call: int64(call), Output: answer,
			Return: int64(time.Since(began))})
	}
	return history, nil
}

func short(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%s…(%d)", strings.TrimRight(s, ".+"), len(s))
	}
	return s
}

// show prints the commands around the first one that no order explains.
func show(history []porcupine.Operation) {
	for _, part := range model.Partition(history) {
		result, info := porcupine.CheckOperationsVerbose(model, part, 20*time.Second)
		if result != porcupine.Illegal {
			continue
		}
		sort.Slice(part, func(i, j int) bool { return part[i].Call < part[j].Call })
		longest := 0
		for _, order := range info.PartialLinearizations()[0] {
			if len(order) > longest {
				longest = len(order)
			}
		}
		fmt.Printf("pair %d: the first %d of %d commands have an order; commands near the next one:\n",
			part[0].Input.(input).pair, longest, len(part))
		for i := longest - 6; i < longest+6; i++ {
			if i < 0 || i >= len(part) {
				continue
			}
			in := part[i].Input.(input)
			fmt.Printf("  %9d to %9d us, client %2d: %s %c %s -> %s\n", part[i].Call/1000, part[i].Return/1000, part[i].ClientId,
				in.command, 'a'+in.side, short(in.value), short(part[i].Output.(string)))
		}
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:7092", "address of the Redis port, or the path of its socket")
	clients := flag.Int("clients", 50, "connections")
	n := flag.Int("commands", 400, "commands of each client")
	pairs := flag.Int("pairs", 16, "pairs of keys")
	seed := flag.Int64("seed", 1, "chooses the commands")
	flag.Parse()
	var all sync.WaitGroup
	histories, errs := make([][]porcupine.Operation, *clients), make([]error, *clients)
	if err := remove(*addr, *pairs); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	began := time.Now()
	for id := 0; id < *clients; id++ {
		all.Add(1)
		go func(id int) {
			defer all.Done()
			histories[id], errs[id] = run(*addr, id, *n, *pairs, *seed, began)
		}(id)
	}
	all.Wait()
	took := time.Since(began)
	var history []porcupine.Operation
	for id := range histories {
		if errs[id] != nil {
			fmt.Println(errs[id])
			os.Exit(2)
		}
		history = append(history, histories[id]...)
	}
	result := porcupine.CheckOperationsTimeout(model, history, 120*time.Second)
	fmt.Printf("%d commands in %v, judged in %v: %v\n", len(history), took.Round(time.Millisecond),
		(time.Since(began) - took).Round(time.Millisecond), result)
	switch result {
	case porcupine.Ok:
	case porcupine.Illegal:
		show(history)
		os.Exit(1)
	default:
		os.Exit(2)
	}
}
