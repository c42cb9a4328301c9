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
}

type verdict struct {
	Lists      int      `json:"lists"`
	Operations int      `json:"operations"`
	Illegal    []string `json:"illegal"`
	Undecided  []string `json:"undecided"`
}

// The state is the elements of one list, each with a line feed.
var model = porcupine.Model{
	Init: func() interface{} { return "" },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		elements, done := state.(string), input.(operation)
		if done.Read == nil {
			return true, elements + done.Appended + "\n"
		}
		read := ""
		for _, element := range *done.Read {
			read += element + "\n"
		}
		return read == elements, elements
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

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
