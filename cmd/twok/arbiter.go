package main

import (
	"github.com/urfave/cli/v2"
)

func arbiterCommand() *cli.Command {
	return &cli.Command{
		Name:  "arbiter",
		Usage: "serve or look at the record that decides who survives",
	}
}
