// Checks a history of lists with porcupine: is each list linearizable?
//
// The standard input has one JSON object per line: the list, the nanoseconds of the start and the
// end of the operation, and the appended element or the elements that were read. The only line of
// output is a JSON object.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const timeoutOfList = 30 * time.Second

type operation struct {
	List     string    `json:"list"`
	Started  int64     `json:"started"`
	Ended    int64     `json:"ended"`
	Appended string    `json:"appended"`
	Read     *[]string `json:"read"`
	// What the list's read found, with a line feed after each element.
	final string
}

// The elements of one list so far, each with a line feed, and whether they were read.
type state struct {
	elements string
	read     bool
}

type verdict struct {
	Lists      int      `json:"lists"`
	Operations int      `json:"operations"`
	Illegal    []string `json:"illegal"`
	Undecided  []string `json:"undecided"`
}

// A list is read once, and an order of appends that the read contradicts need not be tried further:
// otherwise appends at the same time are tried in every order.
var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		now, done := before.(state), input.(operation)
		if done.Read != nil {
			return now.elements == done.final, state{now.elements, true}
		}
		if now.read {
			return true, now
		}
		now.elements += done.Appended + "\n"
		return strings.HasPrefix(done.final, now.elements), now
	},
	DescribeOperation: func(input, _ interface{}) string {
		done := input.(operation)
		if done.Read == nil {
			return "append " + done.Appended
		}
		return "read " + strings.Join(*done.Read, " ")
	},
}

func main() {
	lists := map[string][]porcupine.Operation{}
	found := verdict{Illegal: []string{}, Undecided: []string{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var done operation
		if err := json.Unmarshal(lines.Bytes(), &done); err != nil {
			fail(err)
		}
		one := porcupine.Operation{ClientId: found.Operations, Input: done, Call: done.Started, Return: done.Ended}
		lists[done.List] = append(lists[done.List], one)
		found.Operations++
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
	found.Lists = len(lists)
	for name, history := range lists {
		addFinal(history)
		switch porcupine.CheckOperationsTimeout(model, history, timeoutOfList) {
		case porcupine.Illegal:
			found.Illegal = append(found.Illegal, name)
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, name)
		}
	}
	sort.Strings(found.Illegal)
	sort.Strings(found.Undecided)
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func addFinal(history []porcupine.Operation) {
	final, reads := "", 0
	for _, one := range history {
		if read := one.Input.(operation).Read; read != nil {
			reads++
			for _, element := range *read {
				final += element + "\n"
			}
		}
	}
	if reads != 1 {
		fail(fmt.Errorf("a list has %d reads; exactly one is expected", reads))
	}
	for number, one := range history {
		done := one.Input.(operation)
		done.final = final
		history[number].Input = done
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
