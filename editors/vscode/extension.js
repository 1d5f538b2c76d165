// Starts `linnet lsp` and talks to it; everything that is known about Linnet is known there.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("linnet").get("command");
  client = new LanguageClient(
    "linnet",
    "Linnet",
    { command, args },
    {
      documentSelector: [
        { language: "linnet" },
        { scheme: "file", pattern: "**/linnet.toml" },
      ],
    },
  );
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    vscode.window.showErrorMessage(
      `Linnet: could not start \`${[command, ...args].join(" ")}\` (${error.message}). ` +
        "Install it with: pip install 'linnet[lsp]', or set linnet.command.",
    );
  }
}

async function stop() {
  const running = client;
  client = undefined;
  await running?.stop();
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("linnet.restart", async () => {
      await stop();
      await start();
    }),
  );
  await start();
}

module.exports = { activate, deactivate: stop };
